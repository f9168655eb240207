"""Compaction: the last of each key, tombstones, transactions, memory, and a kill at any point of the swap."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log.cleaner import compact
from agl_stream.infra.embedded.log.offset_map import OffsetMap
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.retention import apply_retention
from tests.infra.logs import TRANSACTIONAL, batch, contents, headers, keyed, open_log, release

DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_compacted(folder: Path, **overrides: str) -> PartitionLog:
    defaults = {"cleanup_policy": "compact", "segment_bytes": "1024", "min_cleanable_dirty_ratio": "0"}
    return open_log(folder, **{**defaults, **overrides})


def put(log: PartitionLog, key: bytes | None, value: bytes | None = b"value", **options) -> int:
    return log.append(keyed([(key, value)], **options)).base_offset


def last_of_each(written: list[tuple[int, bytes | None, bool]], below: int) -> list[tuple[int, bytes | None, bool]]:
    """What compaction of everything below an offset leaves of records: the oracle."""
    latest = {key: offset for offset, key, _ in written if key is not None and offset < below}
    return [row for row in written if row[1] is None or row[0] >= below or latest[row[1]] == row[0]]


@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=20, max_size=200),
    records=st.integers(1, 4),
    max_keys=st.sampled_from([1, 3, 1_000]),
    codec=st.integers(0, 4),
    reopen=st.booleans(),
)
def test_the_last_of_each_key_stays_where_it_was(tmp_path_factory, keys, records, max_keys, codec, reopen):
    folder = tmp_path_factory.mktemp("log")
    log = open_compacted(folder)
    for at in range(0, len(keys), records):
        group = [(None if key is None else b"key %d" % key, b"v" * 30) for key in keys[at : at + records]]
        log.append(keyed(group, attributes=codec))
    written = contents(log)
    end = log.end_offset
    active = log.segments[-1].base_offset
    asyncio.run(compact(log, now_ms(), max_keys))
    if reopen:
        release(log)
        log = open_compacted(folder)
    assert contents(log) == last_of_each(written, active)
    assert (log.start_offset, log.end_offset) == (0, end)
    assert log.append(batch()).base_offset == end
    assert not asyncio.run(compact(log, now_ms(), max_keys)) or len(log.segments) > 1
    release(log)


def test_several_passes_do_what_one_does(tmp_path):
    left = []
    for max_keys in (10, 10_000):
        log = open_compacted(tmp_path / str(max_keys))
        chance = random.Random(1)
        for _ in range(500):
            put(log, b"key %d" % chance.randrange(100))
        asyncio.run(compact(log, now_ms(), max_keys))
        left.append(contents(log))
    assert left[0] == left[1]
    assert len(left[0]) < 200


def test_tombstones_wait_for_readers_and_then_go(tmp_path):
    """From the first pass that meets them, not from their timestamp: an old one is new to who has not read it."""
    log = open_compacted(tmp_path, delete_retention_ms=str(DAY_MS))
    put(log, b"gone", b"before", timestamp_ms=1)
    put(log, b"gone", None, timestamp_ms=2)
    for _ in range(20):
        put(log, b"filler", b"x" * 100)
    start = now_ms()
    assert asyncio.run(compact(log, start))
    assert (1, b"gone", False) in contents(log)
    assert not asyncio.run(compact(log, start + DAY_MS // 2)), "there is nothing to do yet"
    release(log)
    log = open_compacted(tmp_path, delete_retention_ms=str(DAY_MS))
    assert asyncio.run(compact(log, start + DAY_MS + 1)), "a tombstone that is due needs no new records to go"
    assert b"gone" not in [key for _, key, _ in contents(log)]
    assert log.end_offset == 22
    assert not asyncio.run(compact(log, start + 9 * DAY_MS)), "and then there is peace"


def test_merging_does_not_make_tombstones_wait_anew(tmp_path):
    log = open_compacted(tmp_path, delete_retention_ms=str(DAY_MS), segment_bytes="4096")
    put(log, b"gone", None)
    start = now_ms()
    for day in range(3):
        for _ in range(60):
            put(log, b"filler %d" % day, b"x" * 100)
        asyncio.run(compact(log, start + day * (DAY_MS // 2 + 1)))
    assert b"gone" not in [key for _, key, _ in contents(log)]


def test_small_segments_are_merged(tmp_path):
    log = open_compacted(tmp_path)
    for _ in range(300):
        put(log, b"one key", b"x" * 50)
    assert len(log.segments) > 20
    asyncio.run(compact(log, now_ms()))
    asyncio.run(compact(log, now_ms()))
    assert len(log.segments) <= 3
    assert log.end_offset == 300


def test_lags_and_ratio_say_when(tmp_path):
    start = now_ms()
    log = open_compacted(tmp_path, min_compaction_lag_ms=str(DAY_MS), min_cleanable_dirty_ratio="0.9")
    for _ in range(40):
        put(log, b"key", b"x" * 50, timestamp_ms=start)
    assert not asyncio.run(compact(log, start + 1_000)), "younger than min.compaction.lag.ms"
    assert asyncio.run(compact(log, start + DAY_MS + 1_000))
    for _ in range(20):
        put(log, b"key", b"x" * 50, timestamp_ms=start)
        put(log, os.urandom(8), b"x" * 50, timestamp_ms=start)
    release(log)
    log = open_compacted(tmp_path, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(DAY_MS))
    assert not asyncio.run(compact(log, start + 1_000)), "the dirty ratio is below 1"
    assert log.roll_is_due(start + DAY_MS + 60_000), "the active segment must not hold a record longer than the lag"
    assert asyncio.run(compact(log, start + DAY_MS + 60_000)), "max.compaction.lag.ms is over"


def transact(log: PartitionLog, producer_id: int, sequence: int, keys: list[bytes], commit: bool | None) -> None:
    for number, key in enumerate(keys):
        producer = (producer_id, 0, sequence + number)
        put(log, key, b"x" * 40, producer=producer, attributes=TRANSACTIONAL)
    if commit is not None:
        log.append_marker(producer_id, 0, commit)


def test_transactions(tmp_path):
    """Open ones are not touched, aborted records go, and markers when nothing depends on them any more."""
    log = open_compacted(tmp_path, delete_retention_ms="1000")
    transact(log, 1, 0, [b"a", b"b"], commit=True)
    transact(log, 2, 0, [b"a", b"c"], commit=False)
    for _ in range(30):
        put(log, b"filler", b"x" * 100)
    transact(log, 3, 0, [b"a"], commit=None)
    for _ in range(30):
        put(log, b"filler", b"x" * 100)
    start = now_ms()
    asyncio.run(compact(log, start))
    assert [(offset, key) for offset, key, _ in contents(log)][:2] == [(0, b"a"), (1, b"b")], "the abort undid nothing"
    assert b"c" not in [key for _, key, _ in contents(log)]
    assert [header.base_offset for header in headers(log) if header.is_control] == [2, 5]
    assert log.last_stable_offset == 36, "the open transaction"
    assert (36, b"a", True) in contents(log)
    asyncio.run(compact(log, start + 2_000))
    assert [header.base_offset for header in headers(log) if header.is_control] == [2], "the commit still has records"
    release(log)
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    log = open_compacted(tmp_path, delete_retention_ms="1000")
    assert log.producers.open_producers == [3], "rebuilt from what is left, the committed one is still decided"
    assert log.producers.aborted == []
    log.append_marker(3, 0, commit=True)
    put(log, b"b", b"x" * 100)
    for _ in range(30):
        put(log, b"filler", b"x" * 100)
    for later in (3_000, 5_000, 7_000):
        asyncio.run(compact(log, start + later))
    controls = [header.base_offset for header in headers(log) if header.is_control]
    assert 2 not in controls and len(controls) == 1, "nothing of the first transaction is left, so its marker goes too"


def test_readers_of_committed_records_see_the_same_before_and_after(tmp_path):
    log = open_compacted(tmp_path)
    chance = random.Random(7)
    sequences = dict.fromkeys(range(4), 0)
    decided: dict[bytes, int] = {}
    for _ in range(120):
        producer = chance.randrange(4)
        keys = [b"key %d" % chance.randrange(15) for _ in range(chance.randint(1, 3))]
        first = log.end_offset
        commit = chance.random() < 0.6
        transact(log, producer, sequences[producer], keys, commit)
        sequences[producer] += len(keys)
        if commit:
            decided.update((key, first + number) for number, key in enumerate(keys))
    asyncio.run(compact(log, now_ms()))
    aborted = [(each.producer_id, each.first_offset, each.last_offset) for each in log.producers.aborted]
    visible: dict[bytes, int] = {}
    for header in headers(log):
        undone = any(pid == header.producer_id and low <= header.base_offset < high for pid, low, high in aborted)
        if not header.is_control and not undone:
            data = log.read(header.base_offset, 1, log.end_offset)
            from agl_stream.infra.embedded.log.batch import iter_records

            visible.update((record.key, record.offset) for record in iter_records(data, header) if record.key)
    assert visible == decided


def test_compact_and_delete_do_both(tmp_path):
    log = open_compacted(tmp_path, cleanup_policy="compact,delete", retention_ms=str(DAY_MS))
    start = now_ms()
    for number in range(40):
        put(log, b"old %d" % (number % 20), b"x" * 50, timestamp_ms=start - 2 * DAY_MS)
    log.roll()
    for number in range(40):
        put(log, b"new %d" % (number % 3), b"x" * 50, timestamp_ms=start)
    assert apply_retention(log, start) > 0
    assert log.start_offset == 40
    asyncio.run(compact(log, start))
    assert len(contents(log)) < 30
    assert {key for _, key, _ in contents(log)} == {b"new 0", b"new 1", b"new 2"}
    release(log)
    assert open_compacted(tmp_path).start_offset == 40


def test_damage_is_not_compacted_away(tmp_path):
    log = open_compacted(tmp_path)
    for number in range(60):
        put(log, b"key %d" % (number % 5), b"x" * 50)
    segment = log.segments[1]
    os.pwrite(segment.fd, b"\xff", 100)
    before = segment.path.read_bytes()
    assert not asyncio.run(compact(log, now_ms()))
    assert segment.path.read_bytes() == before
    assert not list(tmp_path.glob("*.cleaned"))
    assert log.append(batch()).base_offset == 60


@pytest.mark.parametrize("step", range(12))
def test_a_swap_that_is_cut_short_is_finished_by_the_next_start(tmp_path, monkeypatch, step):
    """Every change of a file of a pass in turn is the first that does not happen."""

    class Killed(BaseException):
        pass

    log = open_compacted(tmp_path)
    for number in range(100):
        put(log, b"key %d" % (number % 7), b"x" * 50)
    written, end, active = contents(log), log.end_offset, log.segments[-1].base_offset
    done = 0

    def counting(function):
        def call(*arguments, **options):
            nonlocal done
            done += 1
            if done > step:
                raise Killed
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as dying:
        for name in ("rename", "remove", "write_whole", "sync_folder"):
            dying.setattr(disk, name, counting(getattr(disk, name)))
        try:
            asyncio.run(compact(log, now_ms()))
        except Killed:
            pass
    release(log)
    again = open_compacted(tmp_path)
    found = contents(again)
    assert set(last_of_each(written, active)) <= set(found) <= set(written)
    assert again.end_offset == end
    assert not any(segment.damaged for segment in again.segments)
    asyncio.run(compact(again, now_ms()))
    assert contents(again) == last_of_each(written, active)
    assert not [*tmp_path.glob("*.swap"), *tmp_path.glob("*.cleaned")]


async def test_appends_go_on_beside_a_pass(tmp_path):
    log = open_compacted(tmp_path, segment_bytes="200000")
    for number in range(1_500):
        put(log, b"key %d" % (number % 50), b"x" * 200)
    before = log.size_bytes
    running = asyncio.create_task(compact(log, now_ms()))
    appended = 0
    while not running.done():
        put(log, b"live %d" % appended, b"x" * 200)
        appended += 1
        await asyncio.sleep(0.001)
    assert await running
    assert log.size_bytes < before
    assert appended > 5, f"only {appended} appends during a pass"
    live = {key for _, key, _ in contents(log) if key is not None and key.startswith(b"live")}
    assert len(live) == appended


async def test_a_topic_deleted_during_a_pass(tmp_path):
    log = open_compacted(tmp_path)
    for number in range(1_000):
        put(log, b"key %d" % (number % 5), b"x" * 50)
    running = asyncio.create_task(compact(log, now_ms()))
    await asyncio.sleep(0)
    log.deleted = True
    await running
    assert not list(tmp_path.glob("*.cleaned"))


def test_the_map_of_keys_is_exact_and_small():
    known = OffsetMap()
    for number in range(50_000):
        known.put(b"key %d" % (number % 20_000), number)
    assert len(known) == 20_000
    for number in range(20_000):
        expected = 40_000 + number if number < 10_000 else 20_000 + number
        assert known.latest(b"key %d" % number) == expected
    assert known.latest(b"never put") == -1
    assert known.size_bytes <= 69 * len(known)
