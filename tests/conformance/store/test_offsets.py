"""Applied offsets: how a sink knows where to go on, and a writer when its write can be read."""

from __future__ import annotations

import threading

import pytest

from agl_stream.errors import EngineUnreachable
from agl_stream.streams.store import StateStore, wait_applied
from tests.conformance.store.backends import Database
from tests.conformance.store.events import ids, place, put, rollout, span
from tests.streams.makers import Placed


def test_nothing_applied_is_none(store: StateStore) -> None:
    store.apply([])
    assert store.applied_offset("spans", 0) is None
    assert store.applied_offsets() == {}


def test_the_next_offset_of_each_partition_by_itself(store: StateStore) -> None:
    store.apply(
        [
            *[Placed("spans", 0, n, span("ro-1", f"s{n}")) for n in (4, 5)],
            *[Placed("spans", 3, 0, span("ro-1", "x")), Placed("rollouts", 0, 2**40, rollout("ro-1"))],
        ]
    )
    assert store.applied_offset("spans", 0) == 6
    assert store.applied_offset("spans", 1) is None
    assert store.applied_offset("attempts", 0) is None
    assert store.applied_offsets() == {("spans", 0): 6, ("spans", 3): 1, ("rollouts", 0): 2**40 + 1}


def test_topics_that_are_not_kept_count_as_applied(store: StateStore) -> None:
    store.apply([Placed("attempts", 2, 9, {}), Placed("a.foreign-topic", 0, 0, {"x": 1})])
    assert store.applied_offsets() == {("attempts", 2): 10, ("a.foreign-topic", 0): 1}
    assert set(store.counts().values()) == {0}


def test_gaps_in_offsets_are_passed_over(store: StateStore) -> None:
    """Compaction and transactions leave holes in a partition."""
    store.apply([Placed("spans", 0, n, span("ro-1", f"s{n}")) for n in (0, 7, 100)])
    assert store.applied_offset("spans", 0) == 101
    assert len(store.get_spans("ro-1")) == 3


def test_what_is_applied_again_does_not_lower_the_mark(store: StateStore) -> None:
    """A sink that lost a partition may finish its last batch after the new owner's: what was visible still is."""
    records = [Placed("spans", 0, n, span("ro-1", f"s{n}")) for n in range(10)]
    store.apply(records)
    for start in (0, 3, 9):
        store.apply(records[start : start + 2])
        assert store.applied_offset("spans", 0) == 10
    store.apply([Placed("spans", 0, 10, span("ro-1", "s10"))])
    assert store.applied_offset("spans", 0) == 11


def test_only_restart_lowers_the_mark(store: StateStore) -> None:
    """A topic made anew counts from 0 again, and its marks rise from there, past the old one as well."""
    put(store, "SpanRecorded", *[span("ro-1", f"s{n}") for n in range(5)], offset=100)
    put(store, "SpanRecorded", span("ro-2", "s"), partition=1, offset=7)
    store.restart("spans", 0)
    assert store.applied_offset("spans", 0) is None
    assert store.applied_offsets() == {("spans", 1): 8}
    assert len(store.get_spans("ro-1")) == 5
    for offset in (0, 1, 104, 200):
        put(store, "SpanRecorded", span("ro-3", f"s{offset}"), offset=offset)
        assert store.applied_offset("spans", 0) == offset + 1
    store.restart("spans", 0)
    store.restart("spans", 0)
    put(store, "SpanRecorded", span("ro-3", "again"), offset=3)
    assert store.applied_offsets() == {("spans", 0): 4, ("spans", 1): 8}


def test_restarting_what_was_never_applied_is_nothing(store: StateStore) -> None:
    store.restart("spans", 0)
    assert store.applied_offset("spans", 0) is None
    put(store, "SpanRecorded", span("ro-1", "s"))
    assert store.applied_offset("spans", 0) == 1


def test_a_batch_that_cannot_be_applied_is_not_marked(database: Database) -> None:
    store = database.open()
    put(store, "RolloutStateChanged", rollout("ro-0"))
    broken = rollout("ro-2")
    del broken["status"]
    records = [
        place("SpanRecorded", span("ro-1", "s")),
        place("RolloutStateChanged", rollout("ro-1"), offset=1),
        place("RolloutStateChanged", broken, offset=2),
    ]
    with pytest.raises(KeyError):
        store.apply(records)
    assert store.applied_offsets() == {("rollouts", 0): 1}
    if database.capabilities.atomic_apply:
        assert (store.get_spans("ro-1"), store.get_rollout("ro-1")) == ([], None)
    # what follows is not harmed by it
    records[2] = place("RolloutStateChanged", rollout("ro-2"), offset=2)
    store.apply(records)
    assert ids(store.query_rollouts()) == ["ro-0", "ro-1", "ro-2"]
    assert store.applied_offsets() == {("rollouts", 0): 3, ("spans", 0): 1}


def test_another_handle_sees_what_the_mark_says(database: Database) -> None:
    writer, reader = database.open(), database.open(read_only=True)
    for n in range(20):
        writer.apply([Placed("spans", 0, n, span("ro-1", f"s{n}", n))])
        assert reader.applied_offset("spans", 0) == n + 1
        assert len(reader.get_spans("ro-1")) == n + 1


def test_a_writer_waits_for_its_write(database: Database) -> None:
    store, reader = database.open(), database.open(read_only=True)
    with pytest.raises(EngineUnreachable, match=r"offset 3 of spans partition 0"):
        wait_applied(reader, "spans", 0, 3, timeout_seconds=0.05)
    later = threading.Timer(0.05, lambda: store.apply([Placed("spans", 0, 3, span("ro-1", "s"))]))
    later.start()
    wait_applied(reader, "spans", 0, 3, timeout_seconds=10)
    assert len(reader.get_spans("ro-1")) == 1
    wait_applied(reader, "spans", 0, 0, timeout_seconds=0)
    later.join()
