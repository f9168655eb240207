"""What the flush policies promise, and what lasts across restarts: transactions, timeouts, expiry, retention."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.groups.offsets import OffsetKey, OffsetStore
from agl_stream.infra.embedded.log.metrics import COUNTERS, measure
from agl_stream.infra.embedded.log.retention import apply_retention
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.server.housekeeping import Housekeeping
from agl_stream.infra.embedded.server.node import Node
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.infra.embedded.transactions.transaction import State
from tests.infra.logs import TRANSACTIONAL, batch, open_log, release

DAY_MS = 86_400_000
PARTITION = ("books", 0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_node(folder: Path, **settings) -> Node:
    return Node(folder, BrokerConfig(**settings))


def abandon(node: Node) -> None:
    """Let go of the folder as a killed process does."""
    for log in node.catalogue.logs():
        release(log)
    for transaction in node.transactions.transactions():
        transaction.stop_timer()


def begin(node: Node, name: str = "bookkeeper", timeout_ms: int = 60_000) -> tuple[int, int]:
    """A transaction with one record; returns (producer id, epoch)."""
    error, producer_id, epoch = node.transactions.init_producer(name, timeout_ms, None)
    assert error is ErrorCode.NONE
    assert node.transactions.add_partitions(name, {PARTITION}) is ErrorCode.NONE
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert log.append(batch(producer=(producer_id, epoch, 0), attributes=TRANSACTIONAL)).error is ErrorCode.NONE
    return producer_id, epoch


def state_of(node: Node, name: str = "bookkeeper") -> State:
    return next(each.state for each in node.transactions.transactions() if each.transactional_id == name)


async def until(condition, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the state is not ours to signal
            await asyncio.sleep(0.01)


# Flush policies


def test_concurrent_producers_share_fsyncs(tmp_path):
    config = BrokerConfig(flush_policy="every-write", group_initial_rebalance_delay_ms=0)
    with BrokerThread(tmp_path, config=config) as broker:
        broker.broker.node.catalogue.create("work", 1, {})
        fsyncs, waits = COUNTERS.fsyncs, COUNTERS.flush_waits

        def send() -> None:
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "log_level": 0,
                }
            )
            for number in range(40):
                producer.produce("work", b"%d" % number)
            assert producer.flush(60) == 0

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        requests, synced = COUNTERS.flush_waits - waits, COUNTERS.fsyncs - fsyncs
        print(f"{synced} fsyncs for {requests} requests")
        assert requests >= 300
        assert synced < requests / 2
        assert measure(broker.broker.node.catalogue.logs()).unflushed_bytes == 0, (
            "all was acknowledged, so all is there"
        )


def test_what_the_disk_refuses_is_not_acknowledged(tmp_path, monkeypatch):
    """A refused fsync leaves clean pages that never reach the disk: they are written again before the next one."""
    config = BrokerConfig(flush_policy="every-write", group_initial_rebalance_delay_ms=0)
    with BrokerThread(tmp_path, config=config) as broker:
        broker.broker.node.catalogue.create("work", 1, {})
        broken = threading.Event()
        redone: list[tuple[int, int]] = []
        refused = threading.Event()
        real_sync, real_redo = disk.sync, disk.redo

        def sync(fd: int) -> None:
            if broken.is_set():
                refused.set()
                raise OSError(errno.EIO, "Input/output error")
            real_sync(fd)

        def redo(fd: int, start: int, stop: int) -> None:
            redone.append((start, stop))
            real_redo(fd, start, stop)

        monkeypatch.setattr(disk, "sync", sync)
        monkeypatch.setattr(disk, "redo", redo)
        delivered: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        producer.produce("work", b"first")
        assert producer.flush(20) == 0
        broken.set()
        producer.produce("work", b"value", on_delivery=lambda error, sent: delivered.append(error or sent.offset()))
        deadline = time.monotonic() + 20
        while not refused.is_set():
            producer.poll(0.01)
            assert time.monotonic() < deadline
        assert not delivered
        broken.clear()
        assert producer.flush(20) == 0
        assert delivered == [1]
        log = broker.broker.node.catalogue.partition("work", 0)
        assert log is not None
        assert log.end_offset == 2, "the repetition was recognised"
        assert redone and redone[0][1] == log.size_bytes


def test_a_redone_range_holds_what_it_held(tmp_path):
    fd = disk.open_file(tmp_path / "file", create=True)
    data = os.urandom(3_000_000)
    disk.write_at(fd, [data], 0)
    disk.redo(fd, 1_000, 2_999_999)
    assert (tmp_path / "file").read_bytes() == data


# Transactions


async def test_an_open_transaction_times_out_across_a_restart(tmp_path):
    """Its time goes on while the broker is down."""
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {})
    node.start()
    begin(node, timeout_ms=700)
    abandon(node)
    await asyncio.sleep(0.6)
    node = open_node(tmp_path)
    began = time.monotonic()
    node.start()
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert log.last_stable_offset == 0
    await until(lambda: state_of(node) is State.ABORTED)
    assert time.monotonic() - began < 0.6, "the whole timeout began anew"
    assert log.last_stable_offset == log.end_offset == 2
    await node.close()


async def test_a_marker_that_a_power_cut_took_is_written_by_the_decision(tmp_path):
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {})
    node.start()
    begin(node)
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    before_marker = log.size_bytes
    assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.NONE
    path = log.segments[-1].path
    abandon(node)
    os.truncate(path, before_marker)
    node = open_node(tmp_path)
    node.start()
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert (log.last_stable_offset, log.producers.aborted) == (2, []), "committed, as its producer was told"
    await node.close()


async def test_a_decision_waits_for_room_and_is_carried_out(tmp_path, monkeypatch):
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {})
    node.start()
    producer_id, epoch = begin(node)
    key = OffsetKey("books", 0)
    assert node.transactions.add_offsets("bookkeeper", [("readers", "books", 0, 1, -1, "")]) is ErrorCode.NONE
    real = disk.write_at
    full = True

    def write_at(fd, parts, position):
        if full and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, parts, position)

    monkeypatch.setattr(disk, "write_at", write_at)
    assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(node) is State.COMMITTING
    error, _, _ = node.transactions.init_producer("bookkeeper", 60_000, None)
    assert error is ErrorCode.CONCURRENT_TRANSACTIONS, "a successor must not make the decision undone"
    assert node.transactions.add_partitions("bookkeeper", {PARTITION}) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not node.offsets.of("readers")
    full = False
    await until(lambda: state_of(node) is State.COMMITTED)
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert log.last_stable_offset == 2 and not log.producers.aborted
    assert node.offsets.of("readers")[key].offset == 1
    assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.NONE, "for a client that asks again"
    assert node.transactions.check("bookkeeper", producer_id, epoch) is ErrorCode.NONE
    await node.close()


async def test_a_journal_without_room_changes_nothing(tmp_path, monkeypatch):
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {})
    node.start()
    begin(node)
    before = [each.entry() for each in node.transactions.transactions()]

    def refuse(fd, parts, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(disk, "write_at", refuse)
        assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert node.transactions.init_producer("bookkeeper", 60_000, None)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert node.transactions.init_producer("another", 60_000, None)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        offsets = [("readers", "books", 0, 1, -1, "")]
        assert node.transactions.add_offsets("bookkeeper", offsets) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(OSError, match="No space"):
            node.offsets.commit("readers", [(OffsetKey("books", 0), 1, -1, "")])
    assert [each.entry() for each in node.transactions.transactions()] == before
    assert not node.offsets.of("readers")
    assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.NONE
    await node.close()


# Expiry


async def test_expiry_counts_across_restarts(tmp_path):
    settings = {"transactional_id_expiration_ms": 600, "producer_id_expiration_ms": 600}
    node = open_node(tmp_path, **settings)
    node.catalogue.create("books", 1, {})
    node.start()
    begin(node)
    assert node.transactions.end("bookkeeper", commit=True) is ErrorCode.NONE
    node.transactions.init_producer("open", 60_000, None)
    node.transactions.add_partitions("open", {PARTITION})
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    log.append(batch(producer=(77, 0, 0)))
    abandon(node)
    node = open_node(tmp_path, **settings)
    node.start()
    node.expire()
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert len(log.producers) == 2, "a restart is not a reason to forget"
    abandon(node)
    await asyncio.sleep(0.7)
    node = open_node(tmp_path, **settings)
    node.start()
    node.expire()
    assert [each.transactional_id for each in node.transactions.transactions()] == ["open"]
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    assert len(log.producers) == 0
    await node.close()


def test_a_producer_of_old_records_is_not_forgotten_for_their_timestamps(tmp_path):
    """Records of last year are sent now: what counts is when the batch came."""
    log = open_log(tmp_path)
    log.append(batch(producer=(7, 0, 0), timestamp_ms=now_ms() - 365 * DAY_MS))
    log.producers.forget_before(0, now_ms() - DAY_MS)
    assert log.append(batch(producer=(7, 0, 0), timestamp_ms=now_ms() - 365 * DAY_MS)).base_offset == 0
    assert log.end_offset == 1
    release(log)
    log = open_log(tmp_path)
    log.producers.forget_before(0, now_ms() - DAY_MS)
    assert log.append(batch(producer=(7, 0, 0), timestamp_ms=now_ms() - 365 * DAY_MS)).base_offset == 0


def test_offsets_of_a_group_in_use_are_kept_however_old(tmp_path):
    store = OffsetStore(tmp_path / "offsets.jsonl")
    store.commit("quiet", [(OffsetKey("t", 0), 5, -1, "")])
    store.commit("gone", [(OffsetKey("t", 0), 6, -1, "")])
    later = now_ms() + 10 * DAY_MS
    store.has_members("quiet", later - DAY_MS)
    store.has_members("never committed", later)
    for _ in range(2):
        assert list(store.idle_since(later - 7 * DAY_MS)) == ["gone"]
        store.close()
        store = OffsetStore(tmp_path / "offsets.jsonl")
    store.rewrite()
    store.close()
    store = OffsetStore(tmp_path / "offsets.jsonl")
    assert list(store.idle_since(later - 7 * DAY_MS)) == ["gone"]
    store.delete("gone")
    store.close()
    assert OffsetStore(tmp_path / "offsets.jsonl").groups() == ["quiet"]


# Retention


def test_retention_by_time_and_by_size(tmp_path):
    start = now_ms()
    log = open_log(tmp_path, segment_bytes="1024", retention_ms=str(DAY_MS), retention_bytes="3000")
    for number in range(60):
        log.append(batch(size=100, timestamp_ms=start - (2 * DAY_MS if number < 12 else 0)))
    size = log.size_bytes
    assert apply_retention(log, start) > 0
    assert log.start_offset >= 12
    assert 3_000 <= log.size_bytes < 3_000 + 1_024 < size
    assert log.end_offset == 60
    first = log.start_offset
    release(log)
    log = open_log(tmp_path, segment_bytes="1024", retention_ms=str(DAY_MS))
    assert log.start_offset == first
    apply_retention(log, start + 2 * DAY_MS)
    assert log.start_offset == log.end_offset == 60, "the active segment too, when all of it is over the time"
    assert log.append(batch()).base_offset == 60


def test_records_without_a_timestamp_are_as_old_as_their_arrival(tmp_path):
    log = open_log(tmp_path, retention_ms=str(DAY_MS))
    log.append(batch(timestamp_ms=-1))
    assert apply_retention(log, now_ms()) == 0
    assert log.start_offset == 0
    release(log)
    log = open_log(tmp_path, retention_ms=str(DAY_MS))
    assert apply_retention(log, now_ms()) == 0
    assert apply_retention(log, now_ms() + 2 * DAY_MS) == 1


async def test_a_silent_segment_is_closed_after_segment_ms(tmp_path):
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {"segment.ms": "100", "retention.ms": "-1"})
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    log.append(batch(timestamp_ms=now_ms()))
    keeper = Housekeeping(node)
    await keeper.look()
    assert len(log.segments) == 1
    await asyncio.sleep(0.15)
    await keeper.look()
    assert len(log.segments) == 2
    await node.close()


async def test_a_checkpoint_bounds_what_a_start_has_to_read(tmp_path, monkeypatch):
    monkeypatch.setattr("agl_stream.infra.embedded.server.housekeeping.CHECKPOINT_BYTES", 10_000)
    node = open_node(tmp_path)
    node.catalogue.create("books", 1, {"retention.ms": "-1"})
    log = node.catalogue.partition(*PARTITION)
    assert log is not None
    for number in range(200):
        log.append(batch(size=500, producer=(5, 0, number)))
    await Housekeeping(node).look()
    assert log.bytes_since_checkpoint == 0
    for number in range(200, 210):
        log.append(batch(size=500, producer=(5, 0, number)))
    abandon(node)
    again = open_node(tmp_path)
    log = again.catalogue.partition(*PARTITION)
    assert log is not None
    assert 0 < log.bytes_since_checkpoint < 7_000, "only what came after the checkpoint was read"
    assert log.end_offset == 210
    assert log.append(batch(size=500, producer=(5, 0, 209))).base_offset == 209
    await again.close()
