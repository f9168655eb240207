"""Spans: whole, once each, in order, however many and however large."""

from __future__ import annotations

import os

import pytest

from agl_stream.errors import UsageError
from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.store import Condition, Query, StateStore
from agl_stream.streams.store.port import SPAN_FIELDS
from tests.conformance.store.events import START_US, ids, llm_call, put, rollout, span
from tests.conformance.store.model import SPAN_FIELDS as PROMISED_FIELDS
from tests.streams.makers import Placed


def test_a_span_comes_back_whole_with_its_place(store: StateStore) -> None:
    event = llm_call(
        "ro-1", "s1", 7, [1, 2, 2**31 - 1], [4, 5], producer={"name": "gateway", "instance": "i", "version": "0"},
        request='{"messages": []}', response='{"id": "ü"}', reward=0.25, parent_id="s0", trace_id="t",
        payload_ref={"uri": "ab/cd", "sha256": "ef", "length": 9}, attributes='{"a": "b"}', events="[{}]",
        links='[{"l": 1}]', resource='{"host": "h"}', status_description="d", ended_at_us=START_US + 1,
        resources_id="rs-1", ids_missing="prompt",
    )  # fmt: skip
    put(store, "SpanRecorded", event, partition=3, offset=41)
    assert store.get_spans("ro-1") == [event | {"source_partition": 3, "source_offset": 41}]


def test_what_is_null_comes_back_as_none(store: StateStore) -> None:
    event = span("ro-1", "s1")
    put(store, "SpanRecorded", event)
    (found,) = store.get_spans("ro-1")
    assert found == event | {"source_partition": 0, "source_offset": 0}
    nulls = {name for name, value in found.items() if value is None}
    assert {"parent_id", "model", "prompt_token_ids", "response_logprobs", "reward", "request", "payload_ref"} <= nulls


def test_empty_bytes_are_not_null(store: StateStore) -> None:
    put(store, "SpanRecorded", span("ro-1", "s1", prompt_token_ids=b"", response_token_ids=None, model=""))
    (found,) = store.get_spans("ro-1")
    assert (found["prompt_token_ids"], found["response_token_ids"], found["model"]) == (b"", None, "")


def test_token_ids_of_any_bytes(store: StateStore) -> None:
    raw = os.urandom(4 * 32_768)
    put(store, "SpanRecorded", span("ro-1", "s1", prompt_token_ids=raw, response_logprobs=bytes(range(256))))
    (found,) = store.get_spans("ro-1")
    assert (found["prompt_token_ids"], found["response_logprobs"]) == (raw, bytes(range(256)))


def test_a_span_of_a_megabyte(store: StateStore) -> None:
    body = '{"messages": "' + "é" * 500_000 + '"}'
    put(store, "SpanRecorded", span("ro-1", "s1", request=body, response="x"), span("ro-1", "s2", 2))
    first, second = store.get_spans("ro-1")
    assert (first["request"], first["response"], second["request"]) == (body, "x", None)


def test_a_span_told_again_stays_one_at_its_first_place(store: StateStore) -> None:
    event = span("ro-1", "s1")
    put(store, "SpanRecorded", event, offset=4)
    put(store, "SpanRecorded", event, event, offset=9)
    (found,) = store.get_spans("ro-1")
    assert found["source_offset"] == 4
    assert store.counts()["spans"] == 1


def test_a_span_twice_in_one_batch_is_one_at_its_first_place(store: StateStore) -> None:
    event = span("ro-1", "s1")
    put(store, "SpanRecorded", event, span("ro-1", "s2", 2), event, offset=7)
    assert [(s["span_id"], s["source_offset"]) for s in store.get_spans("ro-1")] == [("s1", 7), ("s2", 8)]


def test_a_replay_leaves_spans_as_they_are(store: StateStore) -> None:
    records = [Placed("spans", 1, n, span("ro-1", f"s{n % 7}", n % 7)) for n in range(20)]
    store.apply(records)
    before = store.get_spans("ro-1")
    for start in (0, 3, 11):
        store.apply(records[start:])
    assert store.get_spans("ro-1") == before
    assert ids(before, "source_offset") == list(range(7))


def test_the_key_is_rollout_attempt_and_span(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        *[span("ro-1", "s1", name="a"), span("ro-1", "s1", number=2, name="b"), span("ro-2", "s1", name="c")],
        *[span("ro-1", "S1", name="d"), span("ro-2", "s1", attempt_id=attempt_id("ro-1", 1), name="e")],
    )
    assert {s["name"] for s in store.get_spans("ro-1")} == {"a", "b", "d"}
    assert {s["name"] for s in store.get_spans("ro-2")} == {"c", "e"}
    assert store.counts()["spans"] == 5


def test_order_is_sequence_then_start_then_id(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        *[span("ro-1", "b", 2, started_at_us=START_US + 5), span("ro-1", "a", 2, started_at_us=START_US + 7)],
        *[span("ro-1", "z", 2, started_at_us=START_US + 1), span("ro-1", "d", 1), span("ro-1", "c", 1)],
    )
    assert ids(store.get_spans("ro-1"), "span_id") == ["c", "d", "z", "b", "a"]


def test_sequence_ids_of_64_bits(store: StateStore) -> None:
    """Hybrid logical clocks are that large, and a foreign writer may count from anywhere."""
    sequences = [2**63 - 1, 1, 0, -5, 2**53 + 1, 2**53, -(2**63)]
    put(store, "SpanRecorded", *[span("ro-1", f"s{n}", value) for n, value in enumerate(sequences)])
    assert ids(store.get_spans("ro-1"), "sequence_id") == sorted(sequences)
    exact = store.query_spans("ro-1", None, Query((Condition("sequence_id", exact=2**53 + 1),)))
    assert ids(exact, "span_id") == ["s4"]


def test_one_attempt_or_all(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        *[span("ro-1", "late", 9), span("ro-1", "early", 2, number=2), span("ro-1", "middle", 5, number=2)],
    )
    assert ids(store.get_spans("ro-1"), "span_id") == ["early", "middle", "late"]
    assert ids(store.get_spans("ro-1", attempt_id("ro-1", 2)), "span_id") == ["early", "middle"]
    assert ids(store.get_spans("ro-1", attempt_id("ro-1", 1)), "span_id") == ["late"]
    assert store.get_spans("ro-1", attempt_id("ro-1", 3)) == []
    assert store.get_spans("ro-1", attempt_id("ro-2", 1)) == []
    assert store.get_spans("ro-none") == []


def test_conditions_narrow_one_attempt(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        *[span("ro-1", f"s{n}", n, kind="tool" if n % 2 else "agent", name=f"look {n}") for n in range(10)],
        *[span("ro-1", f"t{n}", n, number=2, kind="tool") for n in range(3)],
    )
    tools = Query((Condition("kind", exact="tool"),), limit=2, offset=1, sort_order="desc")
    page = store.query_spans("ro-1", attempt_id("ro-1", 1), tools)
    assert (ids(page, "span_id"), page.total) == (["s7", "s5"], 5)
    assert store.query_spans("ro-1", None, tools).total == 8
    narrowed = Query((Condition("name", contains="look"),), must=(Condition("sequence_id", within=[1, 2, 77]),))
    assert ids(store.query_spans("ro-1", None, narrowed), "span_id") == ["s1", "s2"]


def test_sorting_spans_by_a_field_with_nulls(store: StateStore) -> None:
    rewards = [0.5, None, -1.0, 0.0, None, 1e300]
    put(store, "SpanRecorded", *[span("ro-1", f"s{n}", n, reward=reward) for n, reward in enumerate(rewards)])
    ascending = store.query_spans("ro-1", None, Query(sort_by="reward"))
    assert ids(ascending, "span_id") == ["s1", "s4", "s2", "s3", "s0", "s5"]
    descending = store.query_spans("ro-1", None, Query(sort_by="reward", sort_order="desc"))
    assert ids(descending, "span_id") == ["s5", "s0", "s3", "s2", "s4", "s1"]


def test_pages_of_spans_do_not_overlap_over_attempts(store: StateStore) -> None:
    """The same span id, sequence and start in two attempts: only the attempt tells them apart."""
    put(store, "SpanRecorded", *[span("ro-1", f"s{n % 5}", 1, number=1 + n // 5) for n in range(20)])
    everything = [(s["attempt_id"], s["span_id"]) for s in store.get_spans("ro-1")]
    paged: list[tuple[str, str]] = []
    for offset in range(0, 21, 3):
        page = store.query_spans("ro-1", None, Query(limit=3, offset=offset))
        paged += [(s["attempt_id"], s["span_id"]) for s in page]
    assert paged == everything and len(set(paged)) == 20
    assert everything == sorted(everything, key=lambda place: (place[1], place[0]))
    descending = store.query_spans("ro-1", None, Query(sort_order="desc", limit=19))
    assert [(s["attempt_id"], s["span_id"]) for s in descending] == everything[:0:-1]


def test_bodies_structures_and_token_ids_cannot_be_asked(store: StateStore) -> None:
    assert frozenset(PROMISED_FIELDS) == SPAN_FIELDS
    put(store, "SpanRecorded", span("ro-1", "s1"))
    for name in span("ro-1", "s1").keys() - SPAN_FIELDS | {"source_offset", "producer_name", "nonsense", ""}:
        with pytest.raises(UsageError, match="spans cannot be asked by"):
            store.query_spans("ro-1", None, Query((Condition(name, exact="x"),)))
        with pytest.raises(UsageError, match="spans cannot be asked by"):
            store.query_spans("ro-none", None, Query(sort_by=name))


def test_spans_before_their_rollout_is_known(store: StateStore) -> None:
    put(store, "SpanRecorded", span("ro-1", "s1"))
    assert store.get_rollout("ro-1") is None
    assert ids(store.get_spans("ro-1"), "span_id") == ["s1"]
    put(store, "RolloutStateChanged", rollout("ro-1"))
    assert ids(store.get_spans("ro-1"), "span_id") == ["s1"]


def test_empty_ids_are_ids(store: StateStore) -> None:
    """What a foreign tracer leaves empty is stored, lest it stop the sink for good."""
    put(
        store,
        "SpanRecorded",
        *[span("", "s1", attempt_id=""), span("", "", attempt_id="a"), span("ro-1", "", attempt_id="")],
    )
    assert {s["span_id"] for s in store.get_spans("")} == {"s1", ""}
    assert ids(store.get_spans("", ""), "span_id") == ["s1"]
    assert ids(store.get_spans("ro-1"), "span_id") == [""]
    assert store.last_activity(["", "a"]) == {"": START_US, "a": START_US}


def test_names_of_any_text(store: StateStore) -> None:
    names = ["Werkzeug öffnen", "工具", "🙂", "a'b\"c", "100%_", "nul\0inside", " "]
    put(store, "SpanRecorded", *[span("ro-1", f"s{n}", n, name=name) for n, name in enumerate(names)])
    assert ids(store.get_spans("ro-1"), "name") == names
    for n, name in enumerate(names):
        for condition in (
            Condition("name", exact=name),
            Condition("name", contains=name),
            Condition("name", within=[name]),
        ):
            found = ids(store.query_spans("ro-1", None, Query((condition,))), "span_id")
            assert f"s{n}" in found and (found == [f"s{n}"] or name == " "), (name, condition)


# wide attempts


def test_an_attempt_of_20000_spans(store: StateStore) -> None:
    attempt = attempt_id("ro-wide", 1)
    events = [
        span("ro-wide", f"{n:05d}", (n * 7919) % 20_000, kind="tool" if n % 4 else "agent") for n in range(20_000)
    ]
    for start in range(0, 20_000, 4000):
        put(store, "SpanRecorded", *events[start : start + 4000], offset=start)
    put(store, "SpanRecorded", span("ro-wide", "other", 5, number=2), span("ro-next", "s", 1), offset=20_000)
    found = store.get_spans("ro-wide", attempt)
    assert ids(found, "sequence_id") == list(range(20_000))
    assert store.counts()["spans"] == 20_002
    page = store.query_spans("ro-wide", attempt, Query(limit=5, offset=19_997))
    assert (ids(page, "sequence_id"), page.total) == ([19_997, 19_998, 19_999], 20_000)
    agents = Query((Condition("kind", exact="agent"),), sort_by="span_id", sort_order="desc", limit=2)
    page = store.query_spans("ro-wide", None, agents)
    assert (ids(page, "span_id"), page.total) == (["19996", "19992"], 5000)
    last = store.query_spans("ro-wide", None, Query(sort_order="desc", limit=1))
    assert (ids(last, "sequence_id"), last.total) == ([19_999], 20_001)


def test_a_wide_attempt_over_the_whole_range_of_a_clock(store: StateStore) -> None:
    """Sequence ids far apart must not spread an attempt so thin that it cannot be read."""
    sequences = [(1_790_000_000_000_000 + n * 60_000_000) << 8 for n in range(500)]
    put(store, "SpanRecorded", *[span("ro-1", f"s{n}", value) for n, value in enumerate(sequences)])
    assert ids(store.get_spans("ro-1"), "sequence_id") == sequences
    assert ids(store.query_spans("ro-1", None, Query(limit=2, offset=250)), "span_id") == ["s250", "s251"]


# when an attempt last recorded one


def test_last_activity_is_the_latest_span(store: StateStore) -> None:
    times = (10, 30, 20)
    put(store, "SpanRecorded", *[span("ro-1", f"s{at}", occurred_at_us=START_US + at) for at in times])
    put(store, "SpanRecorded", span("ro-1", "s5", occurred_at_us=START_US + 5), offset=3)
    put(store, "SpanRecorded", span("ro-1", "x", number=2, occurred_at_us=START_US + 1), offset=4)
    one, two = attempt_id("ro-1", 1), attempt_id("ro-1", 2)
    assert store.last_activity([one, two, "at-none", one]) == {one: START_US + 30, two: START_US + 1}
    assert store.last_activity([]) == {}


def test_last_activity_of_any_number_of_attempts(store: StateStore) -> None:
    put(store, "SpanRecorded", *[span(f"ro-{n}", "s", occurred_at_us=START_US + n) for n in range(0, 1200, 2)])
    found = store.last_activity(attempt_id(f"ro-{n}", 1) for n in range(1200))
    assert found == {attempt_id(f"ro-{n}", 1): START_US + n for n in range(0, 1200, 2)}


def test_a_span_told_again_is_activity_only_once(store: StateStore) -> None:
    put(store, "SpanRecorded", span("ro-1", "s", occurred_at_us=START_US + 5))
    put(store, "SpanRecorded", span("ro-1", "s", occurred_at_us=START_US + 5), offset=1)
    assert store.last_activity([attempt_id("ro-1", 1)]) == {attempt_id("ro-1", 1): START_US + 5}
