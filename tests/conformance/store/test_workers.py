"""Workers: each is its latest heartbeat."""

from __future__ import annotations

import pytest

from agl_stream.errors import UsageError
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.events import START_US, beat, ids, put


def test_a_heartbeat_comes_back_whole(store: StateStore) -> None:
    event = beat(
        START_US, "busy", worker_instance="host-1", started_at_us=START_US - 1, interval_seconds=2.5, slots_total=4,
        slots_free=1, partitions=[0, 3], labels=["gpu", "größe"], resources_id="rs", resources_version=3,
        attempts=[{"rollout_id": "ro-1", "attempt_id": "at-1"}], stats='{"cpu": 0.5}',
        producer={"name": "runner", "instance": "i", "version": "0"},
    )  # fmt: skip
    put(store, "WorkerHeartbeat", event)
    assert store.workers() == [event]
    assert store.query_workers().items == [event]


def test_without_workers_there_are_none(store: StateStore) -> None:
    assert store.workers() == []
    assert store.query_workers().total == 0


def test_a_worker_is_its_latest_heartbeat_in_any_order(store: StateStore) -> None:
    for offset, at in enumerate((20, 40, 10, 30)):
        put(store, "WorkerHeartbeat", beat(START_US + at, slots_free=at), offset=offset)
    assert store.workers() == [beat(START_US + 40, slots_free=40)]


def test_heartbeats_out_of_order_within_one_batch(store: StateStore) -> None:
    put(store, "WorkerHeartbeat", *[beat(START_US + at, slots_free=at) for at in (20, 40, 10, 30, 40)])
    assert store.workers() == [beat(START_US + 40, slots_free=40)]
    assert store.counts()["workers"] == 1


def test_an_old_heartbeat_read_again_brings_nobody_back(store: StateStore) -> None:
    """Times are the event's, not those of reading: a replay must not make the dead look alive."""
    stopped = beat(START_US + 50, "stopped", slots_free=0)
    put(store, "WorkerHeartbeat", beat(START_US), stopped)
    put(store, "WorkerHeartbeat", beat(START_US), offset=2)
    assert store.workers() == [stopped]
    assert ids(store.query_workers(Query((Condition("status", exact="stopped"),))), "worker_id") == ["w1"]


def test_workers_are_in_order_of_their_ids(store: StateStore) -> None:
    names = ["w10", "w9", "W1", "", "ä", "a"]
    put(store, "WorkerHeartbeat", *[beat(START_US + n, worker_id=name) for n, name in enumerate(names)])
    assert ids(store.workers(), "worker_id") == ["", "W1", "a", "w10", "w9", "ä"]


def test_pages_and_parts_of_workers(store: StateStore) -> None:
    put(store, "WorkerHeartbeat", *[beat(START_US, worker_id=f"runner-{n:02d}") for n in range(12)])
    page = store.query_workers(Query((Condition("worker_id", contains="-0"),), limit=4, offset=8))
    assert (ids(page, "worker_id"), page.total) == (["runner-08", "runner-09"], 10)
    page = store.query_workers(Query(sort_by="status", sort_order="desc", limit=3))
    assert (ids(page, "worker_id"), page.total) == (["runner-11", "runner-10", "runner-09"], 12)


def test_other_fields_of_workers_cannot_be_asked(store: StateStore) -> None:
    for name in ("slots_free", "labels", "event", "worker_instance"):
        with pytest.raises(UsageError, match="workers cannot be asked by"):
            store.query_workers(Query((Condition(name, exact="x"),)))
        with pytest.raises(UsageError, match="workers cannot be asked by"):
            store.query_workers(Query(sort_by=name))
