"""Handles on a store: opened again, for reading only, many at once, closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from agl_stream.errors import SettingError
from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.backends import Database
from tests.conformance.store.events import (
    START_US,
    beat,
    ended,
    ids,
    joined,
    place,
    published,
    put,
    rejected,
    rollout,
    settled,
    span,
    trained,
)  # fmt: skip
from tests.streams.makers import Placed


def fill(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1", reward=0.5))
    put(store, "SpanRecorded", span("ro-1", "s"), offset=6)
    put(store, "TripletsJoined", joined("ro-1"))
    put(store, "ResourcesPublished", published(1))
    put(store, "WorkerHeartbeat", beat(1))
    put(store, "BatchTrained", trained(1, settled("ro-1")))
    put(store, "RecordRejected", rejected(1))


def everything(store: StateStore) -> list[object]:
    return [
        *[store.get_rollout("ro-1"), store.query_rollouts().items, store.count_rollouts_by_status()],
        *[store.get_spans("ro-1"), store.get_triplets("ro-1"), store.latest_resources(), store.workers()],
        *[store.batches(), store.query_rejects().items, store.applied_offsets(), store.account(), store.counts()],
        store.last_activity([attempt_id("ro-1", 1)]),
    ]


def test_a_store_opened_again_knows_everything(database: Database) -> None:
    first = database.open()
    fill(first)
    before = everything(first)
    first.close()
    assert everything(database.open()) == before
    assert everything(database.open(read_only=True)) == before


def test_a_store_opened_again_goes_on(database: Database) -> None:
    first = database.open()
    put(first, "RolloutStateChanged", rollout("ro-1", 5, "running"))
    first.close()
    second = database.open()
    put(second, "RolloutStateChanged", rollout("ro-1", 4, "queuing"), offset=1)
    put(second, "RolloutStateChanged", rollout("ro-2"), offset=2)
    assert second.count_rollouts_by_status() == {"running": 1, "queuing": 1}
    put(second, "RolloutStateChanged", rollout("ro-1", 6, "succeeded"), offset=3)
    assert second.count_rollouts_by_status() == {"succeeded": 1, "queuing": 1}
    assert second.applied_offset("rollouts", 0) == 4


def test_reading_only_means_it(database: Database) -> None:
    fill(database.open())
    reader = database.open(read_only=True)
    before = everything(reader)
    with pytest.raises(SettingError, match="reading only"):
        reader.apply([place("RolloutStateChanged", rollout("ro-2"))])
    with pytest.raises(SettingError, match="reading only"):
        reader.restart("spans", 0)
    assert everything(reader) == before


def test_reading_a_store_that_nobody_has_made_yet(database: Database) -> None:
    nowhere = database.elsewhere()
    if not database.capabilities.reads_before_creation:
        for read_only in (True, False):
            with pytest.raises(SettingError, match="agl-stream store apply"):
                nowhere.open(read_only=read_only)
        return
    reader = nowhere.open(read_only=True)
    assert (reader.get_rollout("ro-1"), reader.workers(), reader.applied_offsets()) == (None, [], {})
    assert set(reader.counts().values()) == {0}
    fill(nowhere.open())
    assert reader.get_rollout("ro-1") is not None
    nowhere.close()


def test_closing_twice_is_closing(database: Database) -> None:
    store = database.open()
    fill(store)
    store.close()
    store.close()


def test_closing_one_handle_leaves_the_others(database: Database) -> None:
    one, two = database.open(), database.open(read_only=True)
    fill(one)
    before = everything(two)
    one.close()
    assert everything(two) == before


# at once


def at_once(*works: Callable[[], None]) -> None:
    """Each in a thread of its own; what one raises is raised here."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def test_readers_see_no_mark_before_its_data(database: Database) -> None:
    """While one writes, every reader that sees an offset sees what lies before it."""
    writer, done = database.open(), threading.Event()

    def write() -> None:
        try:
            for n in range(0, 400, 10):
                batch = [Placed("spans", 0, n + k, span("ro-1", f"s{n + k}", n + k)) for k in range(10)]
                writer.apply([*batch, Placed("rollouts", 0, n, rollout("ro-1", n + 1))])
        finally:
            done.set()

    def read(reader: StateStore) -> Callable[[], None]:
        def look() -> None:
            looks = 0
            while not done.is_set() or not looks:
                looks += 1
                spans, rollouts = reader.applied_offset("spans", 0) or 0, reader.applied_offset("rollouts", 0) or 0
                assert reader.counts()["spans"] >= spans
                assert len(reader.get_spans("ro-1")) >= spans
                found = reader.get_rollout("ro-1")
                assert (found["version"] if found else 0) >= rollouts

        return look

    shared = database.open(read_only=True)
    at_once(write, read(shared), read(shared), read(database.open(read_only=True)), read(writer))
    assert ids(shared.get_spans("ro-1"), "sequence_id") == list(range(400))


def test_a_page_and_its_total_are_of_one_moment(database: Database) -> None:
    """Rollouts only come: on a page that ends the answer, what lies before it and what it holds add up to the total."""
    writer, reader, done = database.open(), database.open(read_only=True), threading.Event()

    def write() -> None:
        try:
            for n in range(150):
                put(writer, "RolloutStateChanged", rollout(f"ro-{n:03d}"), offset=n)
        finally:
            done.set()

    def read() -> None:
        looks = 0
        while not done.is_set() or not looks:
            looks += 1
            page = reader.query_rollouts(Query(limit=1000, offset=1))
            assert max(page.total - 1, 0) == len(page)

    at_once(write, read, read)
    assert reader.query_rollouts(Query(limit=0)).total == 150


def test_what_a_query_finds_meets_its_conditions_while_rollouts_move_on(database: Database) -> None:
    writer, reader, done = database.open(), database.open(read_only=True), threading.Event()

    def write() -> None:
        try:
            for n in range(120):
                status = ("queuing", "running")[n % 2]
                events = [rollout(f"ro-{k}", n + 1, status) for k in range(10)]
                put(writer, "RolloutStateChanged", *events, offset=10 * n)
        finally:
            done.set()

    def read() -> None:
        looks = 0
        while not done.is_set() or not looks:
            looks += 1
            page = reader.query_rollouts(Query((Condition("status", exact="queuing"),)))
            assert {event["status"] for event in page} <= {"queuing"}

    at_once(write, read, read)
    assert reader.count_rollouts_by_status() == {"running": 10}


def test_triplets_read_while_they_are_replaced_are_of_one_revision(database: Database) -> None:
    writer, reader, done = database.open(), database.open(read_only=True), threading.Event()

    def write() -> None:
        try:
            for revision in range(60):
                calls = 1 + revision % 7
                put(writer, "TripletsJoined", joined("ro-1", revision, calls=calls), offset=revision)
        finally:
            done.set()

    def read() -> None:
        while not done.is_set():
            found = reader.get_triplets("ro-1")
            if found is not None:
                assert found == joined("ro-1", found["revision"], calls=1 + found["revision"] % 7)

    at_once(write, read, read)
    assert reader.get_triplets("ro-1") == joined("ro-1", 59, calls=4)


def test_two_writers_on_partitions_of_their_own(database: Database) -> None:
    """Two sinks of one group: nothing of either is lost, each partition has its own mark."""
    stores = [database.open(), database.open()]

    def write(number: int) -> Callable[[], None]:
        def work() -> None:
            for n in range(40):
                name = f"ro-{number}-{n % 8}"
                stores[number].apply(
                    [
                        Placed("rollouts", number, n, rollout(name, n + 1, run_id=f"run-{number}")),
                        Placed("spans", number, n, span(name, f"s{n}", n)),
                        Placed("workers", number, n, beat(START_US + 2 * n + number)),
                    ]
                )

        return work

    at_once(write(0), write(1))
    for store in stores:
        assert store.applied_offsets() == {(t, n): 40 for t in ("rollouts", "spans", "workers") for n in (0, 1)}
        assert (store.counts()["rollouts"], store.counts()["spans"]) == (16, 80)
        assert store.workers() == [beat(START_US + 79)]
        for number in (0, 1):
            page = store.query_rollouts(Query((Condition("run_id", exact=f"run-{number}"),), sort_by="version"))
            assert ids(page, "version") == list(range(33, 41))


def test_two_writers_on_one_partition(database: Database) -> None:
    """A sink that was paused past its session applies what the next owner has applied already, and more."""
    old, new = database.open(), database.open()
    records = [Placed("rollouts", 0, n, rollout(f"ro-{n % 5}", n + 1)) for n in range(60)]

    def write(store: StateStore, starts: range) -> Callable[[], None]:
        def work() -> None:
            for start in starts:
                store.apply(records[start : start + 6])

        return work

    at_once(write(old, range(0, 30, 3)), write(new, range(0, 60, 6)))
    for store in (old, new):
        assert ids(store.query_rollouts(Query(sort_by="version")), "version") == [56, 57, 58, 59, 60]
        assert store.applied_offsets() == {("rollouts", 0): 60}


def test_threads_share_one_handle(store: StateStore) -> None:
    def write(number: int) -> Callable[[], None]:
        def work() -> None:
            for n in range(10):
                put(store, "SpanRecorded", span(f"ro-{number}", f"s{n}", n), partition=number, offset=n)
                assert len(store.get_spans(f"ro-{number}")) == n + 1

        return work

    at_once(*[write(number) for number in range(6)])
    assert store.counts()["spans"] == 60
    assert store.applied_offsets() == {("spans", number): 10 for number in range(6)}


def test_a_batch_is_durable_when_apply_returns(database: Database) -> None:
    """Read at once by a handle that was opened afterwards, and within a moment."""
    writer = database.open()
    records = [Placed("spans", n % 4, n // 4, span(f"ro-{n % 50}", f"s{n}", n)) for n in range(4000)]
    writer.apply(records)
    started = time.monotonic()
    reader = database.open(read_only=True)
    assert reader.counts()["spans"] == 4000
    assert reader.applied_offsets() == {("spans", n): 1000 for n in range(4)}
    assert time.monotonic() - started < 20
