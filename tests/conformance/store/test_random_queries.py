"""Any query at all: the store answers as the model does, over rows of every kind."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store import model as fields
from tests.conformance.store.backends import Backend
from tests.conformance.store.events import START_US, beat, llm_call, published, rejected, rollout
from tests.conformance.store.model import Model
from tests.streams.makers import Placed, attempt_state, place

SMALL = [0, 1, 2, 10, -1, None]
"""For fields of 32 bits."""

many = settings(
    max_examples=int(os.environ.get("AGL_STREAM_TEST_EXAMPLES", "50")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TEXTS = ["", "a", "b", "ab", "run-1", "ä", "100%", "A_b", "🙂", None]
NUMBERS = [0, 1, 2, 10, -1, START_US, START_US + 1, 2**62, None]


class Both(NamedTuple):
    store: StateStore
    model: Model


def rows() -> list[Placed]:
    """Two hundred rows of five kinds with few different values, so that conditions meet and ties are common."""
    luck = random.Random(20)

    def text() -> Any:
        return luck.choice(TEXTS)

    def some() -> Any:
        return luck.choice(TEXTS[:-1])

    def number() -> Any:
        return luck.choice(NUMBERS)

    def small() -> Any:
        return luck.choice(SMALL)

    def when() -> int:
        return START_US + luck.randrange(3)

    made: list[Placed] = []
    for n in range(40):
        attempts = [attempt_state(f"r{n}", k, worker_id=text()) for k in range(1, 1 + luck.randrange(4))]
        event = rollout(
            luck.choice(["r", "R", "ä"]) + str(n), luck.randrange(1, 4), luck.choice(["queuing", "running", "failed"]),
            reason_code=text(), mode=luck.choice(["train", "val"]), resources_id=text(), resources_version=small(),
            run_id=text(), group_id=text(), requested_at_us=when(), ended_at_us=number(), attempts=attempts,
        )  # fmt: skip
        made.append(place("RolloutStateChanged", event, offset=n))
    for n in range(60):
        event = llm_call(
            "ro-1", f"s{n % 31}", luck.choice([1, 2, 2**62]), [1], [2], number=1 + luck.randrange(3),
            occurred_at_us=when(), trace_id=some(), parent_id=text(), name=some(), kind=luck.choice(["tool", "agent"]),
            status=luck.choice(["ok", "error"]), status_description=text(), started_at_us=when(), ended_at_us=number(),
            model=text(), resources_id=text(), resources_version=small(), finish_reason=text(), ids_missing=text(),
            reward=luck.choice([None, 0.0, 0.5, -1.0, 1e300, 1.0]),
        )  # fmt: skip
        made.append(place("SpanRecorded", event, offset=n))
    for n in range(40):
        event = published(luck.randrange(9), when(), some(), run_id=text(), step=number())
        made.append(place("ResourcesPublished", event | {"occurred_at_us": when() * 10 + n}, offset=n))
        event = beat(when() * 10 + n, luck.choice(["idle", "busy"]), some() + str(n % 9), role="server")
        made.append(place("WorkerHeartbeat", event, offset=n))
        event = rejected(
            luck.randrange(-1, 5), some(), source_topic=some(), source_partition=luck.randrange(3), rollout_id=text(),
            attempt_id=text(), rejected_by=some(), occurred_at_us=when() * 10 + n,
        )  # fmt: skip
        made.append(place("RecordRejected", event, offset=n))
    return made


@pytest.fixture(scope="module")
def both(backend: Backend) -> Iterator[Both]:
    database = backend.make()
    both = Both(database.open(), Model())
    both.store.apply(rows())
    both.model.apply(rows())
    assert both.store.counts() == both.model.counts()
    yield both
    database.close()


@st.composite
def conditions(draw: st.DrawFn, names: tuple[str, ...]) -> Condition:
    name = draw(st.sampled_from(names))
    values = st.sampled_from(TEXTS) | st.sampled_from(
        [f"r{n}" for n in range(9)] + ["running", "tool", "idle", "train"]
    )
    if name.endswith(("_us", "version", "number", "step", "offset", "partition", "sequence_id")):
        values = st.sampled_from([*NUMBERS, 3, 7])
    elif name == "reward":
        values = st.sampled_from([None, 0.0, 0.5, -1.0, 1e300, 0, 1])
    kind = draw(st.sampled_from(["exact", "within", "contains"]))
    if kind == "exact":
        return Condition(name, exact=draw(values))
    if kind == "within":
        return Condition(name, within=draw(st.lists(values, max_size=4)))
    return Condition(name, contains=draw(st.sampled_from([text for text in TEXTS if text is not None])))


@st.composite
def queries(draw: st.DrawFn, names: tuple[str, ...]) -> Query:
    return Query(
        conditions=tuple(draw(st.lists(conditions(names), max_size=3))),
        logic=draw(st.sampled_from(["and", "or"])),
        must=tuple(draw(st.lists(conditions(names), max_size=2))),
        sort_by=draw(st.none() | st.sampled_from(names)),
        sort_order=draw(st.sampled_from(["asc", "desc"])),
        limit=draw(st.sampled_from([-1, -1, 0, 1, 5, 100])),
        offset=draw(st.sampled_from([0, 0, 1, 7, 300])),
    )


def same(of_store: Any, of_model: Any) -> None:
    assert (of_store.items, of_store.total) == (of_model.items, of_model.total)
    assert (of_store.limit, of_store.offset) == (of_model.limit, of_model.offset)


@many
@given(query=queries(fields.ROLLOUT_FIELDS))
def test_of_rollouts(both: Both, query: Query) -> None:
    same(both.store.query_rollouts(query), both.model.query_rollouts(query))


@many
@given(query=queries(fields.SPAN_FIELDS), attempt=st.sampled_from([None, 1, 2, 4]))
def test_of_spans(both: Both, query: Query, attempt: int | None) -> None:
    asked = "ro-1", None if attempt is None else attempt_id("ro-1", attempt), query
    same(both.store.query_spans(*asked), both.model.query_spans(*asked))


@many
@given(query=queries(fields.RESOURCE_FIELDS))
def test_of_resources(both: Both, query: Query) -> None:
    same(both.store.query_resources(query), both.model.query_resources(query))


@many
@given(query=queries(fields.WORKER_FIELDS))
def test_of_workers(both: Both, query: Query) -> None:
    same(both.store.query_workers(query), both.model.query_workers(query))


@many
@given(query=queries(fields.REJECT_FIELDS))
def test_of_rejects(both: Both, query: Query) -> None:
    same(both.store.query_rejects(query), both.model.query_rejects(query))


def test_the_rest_of_the_questions(both: Both) -> None:
    store, model = both
    for name in ("", "a", "ä", "run-1", "none"):
        assert store.account(name) == model.account(name)
        assert store.count_rollouts_by_status(run_id=name) == model.count_rollouts_by_status(run_id=name)
        assert store.latest_resources(name) == model.latest_resources(name)
    assert store.latest_resources() == model.latest_resources()
    assert store.rejects_by_reason() == model.rejects_by_reason()
    assert store.workers() == model.workers()
    assert store.account() == model.account()


def test_the_queries_are_not_dull(both: Both) -> None:
    """Guards the properties above: many a drawn query finds something, and not everything."""
    telling = 0

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(query=queries(fields.ROLLOUT_FIELDS))
    def look(query: Query) -> None:
        nonlocal telling
        telling += 0 < both.model.query_rollouts(query).total < 40

    look()
    assert telling > 20
