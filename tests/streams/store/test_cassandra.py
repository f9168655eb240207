"""What is particular to the Cassandra store: rows before offsets, buckets, generations of a topic, processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agl_stream.errors import SettingError
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.ids import attempt_id
from agl_stream.settings import Settings
from agl_stream.streams.store import Condition, Query, StateStore, open_store
from agl_stream.streams.store.cassandra import bridge, requests, span_buckets, statements, writing
from agl_stream.streams.store.cassandra.store import CassandraStore
from agl_stream.streams.store.layout import apply_store

from ..makers import START_US, Placed, ended, llm_call, make, place, rollout, span
from .cassandra_keyspace import cql, fresh_keyspace

pytestmark = pytest.mark.engines

WRITE_FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[1])
from makers import Placed, span
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
store, n = open_store(Settings(store_url=sys.argv[2]), read_only=False), 0
while True:
    store.apply([Placed("spans", 0, n + k, span(f"ro-{n}", f"s{k}", attributes="x" * 900)) for k in range(50)])
    n += 50
"""


@pytest.fixture(scope="module")
def settings(cassandra: Cassandra) -> Iterator[Settings]:
    """One keyspace for all; tests keep apart by ids, partitions and topics."""
    with fresh_keyspace(cassandra.contact_points) as made:
        apply_store(made)
        yield made


@pytest.fixture
def store(settings: Settings) -> Iterator[CassandraStore]:
    opened = open_store(settings, read_only=False)
    assert isinstance(opened, CassandraStore)
    yield opened
    opened.close()


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


# rows and offsets


def test_an_offset_is_never_visible_before_the_rows_it_covers(settings: Settings, store: StateStore) -> None:
    helpers = str(Path(__file__).parent.parent)
    writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, helpers, settings.store_url])
    try:
        wait_until(lambda: (store.applied_offset("spans", 0) or 0) >= 500)
        for _ in range(30):
            applied = store.applied_offset("spans", 0) or 0
            assert len(store.get_spans(f"ro-{applied - 50}")) == 50
    finally:
        writer.kill()
        writer.wait()
    # what the killed writer had begun comes again and changes nothing that was whole
    applied = store.applied_offset("spans", 0) or 0
    again = [Placed("spans", 0, applied + k, span(f"ro-{applied}", f"s{k}", attributes="x" * 900)) for k in range(50)]
    store.apply(again)
    assert [len(store.get_spans(f"ro-{n}")) for n in (0, applied - 50, applied)] == [50, 50, 50]
    assert store.applied_offset("spans", 0) == applied + 50


def test_rows_without_their_offset_come_again_and_converge(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [
        place("RolloutStateChanged", ended("crash-1", 3), 1, 5),
        Placed("spans", 1, 8, span("crash-1", "a")),
        Placed("spans", 1, 9, span("crash-1", "b")),
    ]

    def crash(positions: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(store._applied, "note", crash)
        with pytest.raises(RuntimeError):
            store.apply(batch)
    assert store.applied_offset("spans", 1) is None
    # from an earlier place, as after a lost commit, and with a newer state behind it
    store.apply([Placed("spans", 1, 7, span("crash-1", "z")), *batch])
    store.apply([place("RolloutStateChanged", rollout("crash-1", 2, "running"), 1, 4)])
    assert [found["span_id"] for found in store.get_spans("crash-1")] == ["a", "b", "z"]
    assert store.get_rollout("crash-1") == ended("crash-1", 3)
    assert store.applied_offset("spans", 1) == 10


def test_nothing_is_written_for_a_batch_that_cannot_be_read(store: StateStore) -> None:
    broken = rollout("broken-2")
    del broken["status"]
    with pytest.raises(KeyError):
        store.apply([place("SpanRecorded", span("broken-1", "s"), 2), place("RolloutStateChanged", broken, 2)])
    assert store.get_spans("broken-1") == []
    assert store.applied_offset("spans", 2) is None


def test_a_process_that_lost_its_partition_does_not_move_the_mark_back(settings: Settings, store: StateStore) -> None:
    zombie = open_store(settings, read_only=False)
    zombie.apply([Placed("spans", 3, 4, span("zombie", "a"))])
    store.apply([Placed("spans", 3, 9, span("zombie", "b"))])
    zombie.apply([Placed("spans", 3, 5, span("zombie", "c"))])
    assert store.applied_offset("spans", 3) == 10
    zombie.close()


def test_a_topic_made_anew_starts_above_everything_that_was_before(settings: Settings, store: StateStore) -> None:
    zombie = open_store(settings, read_only=False)
    zombie.apply([place("RolloutStateChanged", ended("anew", 500), 4, 1000)])
    store.restart("rollouts", 4)
    assert store.applied_offset("rollouts", 4) is None
    # the same rollout in its second life, with lower versions and offsets
    store.apply([place("RolloutStateChanged", rollout("anew", 1), 4, 0)])
    found = store.get_rollout("anew")
    assert found is not None and found["version"] == 1
    assert store.query_rollouts(Query((Condition("rollout_id", exact="anew"),))).items == [rollout("anew", 1)]
    # who has not noticed changes neither the state nor the mark
    zombie.apply([place("RolloutStateChanged", ended("anew", 501), 4, 1001)])
    assert store.get_rollout("anew") == rollout("anew", 1)
    assert store.applied_offset("rollouts", 4) == 1
    # and goes on with the others once it looks
    zombie.applied_offsets()
    zombie.apply([place("RolloutStateChanged", rollout("anew", 2, "running"), 4, 1)])
    found = store.get_rollout("anew")
    assert found is not None and (found["version"], store.applied_offset("rollouts", 4)) == (2, 2)
    zombie.close()


def test_a_row_is_never_half_of_one_event_and_half_of_another(settings: Settings, store: StateStore) -> None:
    """Two of one version cannot come from one lifecycle; if they came all the same, list and rollout agree."""
    one = rollout("tie", 7, "running", run_id="tie-run", requested_at_us=START_US)
    other = rollout("tie", 7, "failed", run_id="tie-run", requested_at_us=START_US, reason_code="agent_error")
    for first, second in (((one, 3), (other, 9)), ((other, 9), (one, 3))):
        for event, offset in (first, second):
            store.apply([place("RolloutStateChanged", event, 5, offset)])
        # the first on the log, whichever came first
        assert store.get_rollout("tie") == one
        assert store.count_rollouts_by_status(run_id="tie-run") == {"running": 1}


def test_what_was_written_is_written_with_the_event_s_own_time(settings: Settings, store: StateStore) -> None:
    store.apply(
        [
            place("RolloutStateChanged", rollout("stamp", 6), 6, 1),
            Placed("spans", 6, 1, span("stamp", "a", occurred_at_us=START_US + 5)),
            place("WorkerHeartbeat", make("WorkerHeartbeat", worker_id="stamp", occurred_at_us=START_US + 6)),
        ]
    )
    with cql(settings) as session:
        stamp = session.execute("SELECT WRITETIME(event) FROM rollouts WHERE rollout_id = 'stamp'").one()[0]
        assert stamp == 6 * 8 + 1
        found = session.execute("SELECT rollout_id, WRITETIME(event) FROM spans").all()
        assert dict(found)["stamp"] == START_US + 5
        found = session.execute("SELECT worker_id, WRITETIME(event) FROM workers").all()
        assert dict(found)["stamp"] == START_US + 6
        # and nothing anywhere has the time of its writing
        found = session.execute("SELECT WRITETIME(next_offset) FROM applied WHERE part = 0 AND topic = 'spans'").all()
        assert all(stamp < now_us() - 86_400_000_000 for (stamp,) in found)


# spans in buckets


def test_a_wide_attempt_goes_over_several_partitions_and_comes_back_whole(
    settings: Settings, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_buckets, "BUCKET_BYTES", 20_000)
    spans = [Placed("spans", 7, n, span("wide", f"s{n:03d}", n, attributes="x" * 400)) for n in range(300)]
    for start in range(0, 300, 70):
        store.apply(spans[start : start + 70])
    # some again after a restart: other buckets, the same spans
    second = open_store(settings, read_only=False)
    second.apply(spans[100:200])
    assert [found["span_id"] for found in store.get_spans("wide")] == [f"s{n:03d}" for n in range(300)]
    assert store.query_spans("wide", None, Query(limit=10, offset=295)).total == 300
    with cql(settings) as session:
        buckets = session.execute("SELECT bucket FROM span_buckets WHERE rollout_id = 'wide'").all()
    assert len(buckets) > 300 * 700 // 20_000
    assert store.counts()["spans"] >= 300
    second.close()


def test_of_several_deliveries_of_a_span_the_first_place_is_told(store: StateStore) -> None:
    event = llm_call("twice", "s", 3, [1], [2])
    store.apply([Placed("spans", 8, 40, event)])
    store.apply([Placed("spans", 8, 30, event), Placed("spans", 8, 50, event)])
    (found,) = store.get_spans("twice")
    assert (found["source_partition"], found["source_offset"]) == (8, 30)
    before = store.counts()["spans"]
    store.apply([Placed("spans", 8, 60, event)])
    assert store.counts()["spans"] == before


def test_spans_expire_by_the_retention_and_what_leads_to_them_later(cassandra: Cassandra) -> None:
    with fresh_keyspace(cassandra.contact_points, store_span_days=3 / 86_400) as short:
        apply_store(short)
        store = open_store(short, read_only=False)
        store.apply([Placed("spans", 0, 0, span("ro", "a")), place("RolloutStateChanged", rollout("ro"))])
        assert len(store.get_spans("ro")) == 1
        wait_until(lambda: not store.get_spans("ro"), 30)
        assert store.get_rollout("ro") == rollout("ro")
        store.close()


# odd events


def test_ids_of_any_kind_and_length_are_kept_apart(store: StateStore) -> None:
    ids = ["", "\0", "ü" * 400, "x" * 70_000, "x" * 70_001, "'; DROP TABLE rollouts; --", "\U0001f600"]
    store.apply([place("RolloutStateChanged", rollout(odd, run_id="odd"), 9, n) for n, odd in enumerate(ids)])
    store.apply([Placed("spans", 9, n, span(odd, odd, n)) for n, odd in enumerate(ids)])
    assert store.get_rollouts(ids).keys() == set(ids)
    assert store.count_rollouts_by_status(run_id="odd") == {"queuing": len(ids)}
    for odd in ids:
        assert [found["span_id"] for found in store.get_spans(odd)] == [odd]


def test_times_from_sick_clocks_are_taken(store: StateStore) -> None:
    times = (-(2**63), -1, 1, 2**63 - 1)
    store.apply([Placed("spans", 10, n, span("sick", f"s{n}", n, occurred_at_us=at)) for n, at in enumerate(times)])
    beats = [make("WorkerHeartbeat", worker_id=f"sick-{at}", occurred_at_us=at) for at in times]
    store.apply([place("WorkerHeartbeat", beat, 10, n) for n, beat in enumerate(beats)])
    assert [found["occurred_at_us"] for found in store.get_spans("sick")] == list(times)
    assert len([worker for worker in store.workers() if worker["worker_id"].startswith("sick")]) == 4


def test_an_event_larger_than_the_database_takes_is_told_with_the_setting(store: StateStore) -> None:
    large = span("large", "s", request="x" * 9_000_000)
    with pytest.raises(SettingError, match="commitlog_segment_size"):
        store.apply([Placed("spans", 11, 0, large)])
    assert store.applied_offset("spans", 11) is None
    store.apply([Placed("spans", 11, 0, span("large", "s", request="x" * 7_000_000))])
    assert len(store.get_spans("large")[0]["request"]) == 7_000_000


# requests


def test_never_more_requests_under_way_than_are_allowed(store: CassandraStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WRITES_AT_ONCE", 4)
    session = store._connection.session
    send, under_way, most = session.execute_async, set[int](), 0
    lock = threading.Lock()

    def counted(statement: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal most
        future = send(statement, *args, **kwargs)
        with lock:
            under_way.add(id(future))
            most = max(most, len(under_way))
        future.add_callbacks(lambda _: under_way.discard(id(future)), lambda _: under_way.discard(id(future)))
        return future

    monkeypatch.setattr(session, "execute_async", counted)
    store.apply([Placed("spans", 12, n, span(f"flight-{n}", "s")) for n in range(300)])
    assert 1 < most <= 5


def test_rows_of_one_partition_travel_together_and_others_do_not(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store._connection.session
    send, sent = session.execute_async, []

    def noted(statement: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(statement)
        return send(statement, *args, **kwargs)

    monkeypatch.setattr(session, "execute_async", noted)
    spans = [Placed("spans", 13, n, span(f"batch-{n % 3}", f"s{n}", n, attributes="x" * 900)) for n in range(600)]
    store.apply(spans)
    batches = [statement for statement in sent if hasattr(statement, "_statements_and_parameters")]
    rows = [statement._statements_and_parameters for statement in batches]
    # 200 spans of one kilobyte for each of three attempts: two batches of 100 each
    assert sorted(len(batch) for batch in rows if len(batch[0][2]) == 9) == [100] * 6
    for batch in rows:
        assert len({tuple(values[:1]) for _, _, values in batch}) == 1
        assert sum(len(values[-2]) for _, _, values in batch) <= requests.BATCH_BYTES


def test_every_statement_that_was_prepared_writes_with_a_timestamp(store: CassandraStore) -> None:
    told = [
        place("RolloutStateChanged", ended("all", 2), 14),
        Placed("spans", 14, 0, span("all", "s")),
        place("TripletsJoined", make("TripletsJoined", rollout_id="all"), 14),
        place("ResourcesPublished", make("ResourcesPublished", resources_id="all", version=1), 14),
        place("WorkerHeartbeat", make("WorkerHeartbeat", worker_id="all"), 14),
        place("BatchTrained", make("BatchTrained", learner_id="all", step=1), 14),
        place("RecordRejected", make("RecordRejected", source_topic="all", reason_code="r"), 14),
    ]
    assert {record.topic for record in told} == set(writing._ROWS)
    store.apply(told)
    store.restart("all", 14)
    prepared = [text for text in store._connection._prepared if not text.startswith("SELECT")]
    assert len(prepared) == 13
    assert all(text.startswith("INSERT") and text.endswith("USING TIMESTAMP ?") for text in prepared)


def test_more_than_the_network_takes_at_once_is_written_all_the_same(store: StateStore) -> None:
    """Forty megabytes in batches that fill every buffer: the driver refuses to send some, and that is no failure."""
    spans = [Placed("spans", 18, n, span(f"full-{n % 50}", f"s{n}", n, attributes="x" * 190_000)) for n in range(200)]
    store.apply(spans)
    assert sum(len(store.get_spans(f"full-{n}")) for n in range(50)) == 200


# processes and threads


def test_a_child_that_was_forked_asks_by_a_session_of_its_own(settings: Settings, store: StateStore) -> None:
    store.apply([place("RolloutStateChanged", rollout("fork"), 15)])
    child = os.fork()
    if child == 0:
        # no pytest, no fixtures, no end of the parent's threads here
        os._exit(0 if store.get_rollout("fork") is not None else 1)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.05)
    assert done[1] == 0
    assert store.get_rollout("fork") == rollout("fork")


def test_many_threads_read_while_one_writes(store: StateStore) -> None:
    stop = threading.Event()

    def read() -> int:
        times = 0
        while not stop.is_set():
            store.get_spans("threads")
            store.query_rollouts(Query((Condition("run_id", exact="threads"),), limit=5))
            times += 1
        return times

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for n in range(20):
            store.apply([Placed("spans", 16, n, span("threads", f"s{n}"))])
            store.apply([place("RolloutStateChanged", rollout(f"threads-{n}", run_id="threads"), 16, n)])
        stop.set()
        assert all(reader.result(60) > 0 for reader in readers)
    assert len(store.get_spans("threads")) == 20
    assert store.query_rollouts(Query((Condition("run_id", exact="threads"),))).total == 20


async def test_an_asyncio_program_asks_without_a_thread_for_each_question(store: CassandraStore) -> None:
    store.apply([Placed("spans", 17, n, span("bridge", f"s{n}", n)) for n in range(2500)])
    connection = store._connection
    (bucket,) = [bucket async for _, bucket in bridge.rows(connection, statements.SPAN_BUCKETS, "bridge")]
    place = ("bridge", attempt_id("bridge", 1), bucket)

    async def ask() -> int:
        return len([row async for row in bridge.rows(connection, statements.SPAN_KEYS, *place)])

    threads = threading.active_count()
    # more than one page each, many at once
    assert await asyncio.gather(*[ask() for _ in range(20)]) == [2500] * 20
    assert threading.active_count() <= threads + 2
    with pytest.raises(SettingError, match=r"refuses a statement|not set up"):
        _ = [row async for row in bridge.rows(connection, "SELECT nothing FROM nowhere")]


def test_a_reader_does_not_write(settings: Settings) -> None:
    reader = open_store(settings, read_only=True)
    for call in (lambda: reader.apply([]), lambda: reader.restart("spans", 0)):
        with pytest.raises(SettingError, match="opened for reading only"):
            call()
    reader.close()
