"""Spans, resources, workers and rejects can be asked and sorted by each of their fields. One store for all cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agl_stream.schemas.events import Event
from agl_stream.streams.store import Condition, Page, Query, StateStore
from tests.conformance.store.backends import Backend
from tests.conformance.store.events import START_US, beat, llm_call, published, put, rejected, span
from tests.conformance.store.model import REJECT_FIELDS, RESOURCE_FIELDS, SPAN_FIELDS, WORKER_FIELDS

SPANS = [
    span("ro-1", "s1", 1, event_id="e1"),
    llm_call(
        "ro-1", "s2", 2, [1], [2], number=2, event_id="e2", occurred_at_us=START_US + 1, trace_id="t", parent_id="p",
        status_description="d", started_at_us=START_US + 2, ended_at_us=START_US + 3, resources_id="rs", reward=0.5,
        ids_missing="prompt",
    ),
    span("ro-1", "s3", 2, event_id="e3", kind="tool", status="error", status_description="", reward=-0.5, model=""),
]  # fmt: skip
RESOURCES = [
    published(1, START_US, "rs-1"),
    published(2, START_US + 1, "rs-1", run_id="run-1", step=3),
    published(2, START_US, "rs-2", run_id="run-2", step=3),
]
OLD_WORKERS = [beat(START_US - 9, "stopping", f"w{n}", role="gateway") for n in range(4)]
WORKERS = [
    beat(START_US, "idle", "w0"),
    beat(START_US + 1, "busy", "w1"),
    beat(START_US, "busy", "w2", role="server"),
    beat(START_US + 2, "idle", "w3", role="trainer"),
]
REJECTS = [
    rejected(1, occurred_at_us=START_US),
    rejected(2, "nan_logprob", occurred_at_us=START_US + 1, rollout_id="ro-1", attempt_id="at-1"),
    rejected(2, occurred_at_us=START_US + 1, source_topic="attempts", source_partition=0, rejected_by="joiner"),
    rejected(-1, "bad_json", occurred_at_us=START_US, rollout_id="ro-2", event_id="e"),
]


@pytest.fixture(scope="module")
def library(backend: Backend) -> Iterator[StateStore]:
    """A store with all of these, for reading."""
    database = backend.make()
    store = database.open()
    put(store, "SpanRecorded", *SPANS, span("ro-2", "s1"))
    put(store, "ResourcesPublished", *RESOURCES)
    put(store, "WorkerHeartbeat", *OLD_WORKERS)
    put(store, "WorkerHeartbeat", *WORKERS, offset=len(OLD_WORKERS))
    put(store, "RecordRejected", *REJECTS)
    yield store
    database.close()


def check(ask: Any, events: Sequence[Event], name: str, key: Sequence[str]) -> None:
    """Equality and membership for each value that ``name`` has among ``events``, and for one it has not; sorting."""

    def places(page: Page | Sequence[Event]) -> list[tuple[Any, ...]]:
        return sorted(tuple(event[part] for part in key) for event in page)

    for asked in events:
        expected = [event for event in events if event[name] == asked[name]]
        for condition in (Condition(name, exact=asked[name]), Condition(name, within=[asked[name]])):
            page = ask(Query((condition,)))
            assert (places(page), page.total) == (places(expected), len(expected))
    absent = "absent" if any(isinstance(event[name], str) for event in events) else -7
    for condition in (Condition(name, exact=absent), Condition(name, within=[absent]), Condition(name, within=[])):
        assert ask(Query((condition,))).items == []
    values = [event[name] for event in events[:2]]
    both = [event for event in events if event[name] in values]
    assert places(ask(Query((Condition(name, within=[*values, absent]),)))) == places(both)
    ascending = ask(Query(sort_by=name)).items
    ranks = [(event[name] is not None, event[name], *(event[part] for part in key)) for event in ascending]
    assert len(ranks) == len(events) and ranks == sorted(ranks)
    assert ask(Query(sort_by=name, sort_order="desc")).items == ascending[::-1]


@pytest.mark.parametrize("name", SPAN_FIELDS)
def test_spans_by(library: StateStore, name: str) -> None:
    check(lambda query: library.query_spans("ro-1", None, query), SPANS, name, ("span_id", "attempt_id"))


@pytest.mark.parametrize("name", RESOURCE_FIELDS)
def test_resources_by(library: StateStore, name: str) -> None:
    check(library.query_resources, RESOURCES, name, ("resources_id", "version"))


@pytest.mark.parametrize("name", WORKER_FIELDS)
def test_workers_by(library: StateStore, name: str) -> None:
    check(library.query_workers, WORKERS, name, ("worker_id",))
    for outdated in {event[name] for event in OLD_WORKERS} - {event[name] for event in WORKERS}:
        assert library.query_workers(Query((Condition(name, exact=outdated),))).total == 0


@pytest.mark.parametrize("name", REJECT_FIELDS)
def test_rejects_by(library: StateStore, name: str) -> None:
    key = ("source_topic", "source_partition", "source_offset", "reason_code", "event_id")
    check(library.query_rejects, REJECTS, name, key)
