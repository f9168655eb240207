"""The model-call adapter: order, doubles, rewards, and what it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.producers import semconv
from agl_stream.schemas.tokens import pack_floats, pack_ids, unpack_ids
from agl_stream.streams.joiner.adapter import Adapted
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.spans import SpanView, view_of

from ..makers import START_US, llm_call, reward_span, span


def adapt(*events: dict[str, Any]) -> Adapted:
    views = [view_of(event, 0, offset) for offset, event in enumerate(events)]
    return LlmCalls().adapt([view for view in views if view is not None])


def ids(adapted: Adapted) -> list[str]:
    return [triplet["span_id"] for triplet in adapted.triplets]


def rewards(adapted: Adapted) -> list[float | None]:
    return [triplet["reward"] for triplet in adapted.triplets]


def call(span_id: str, sequence_id: int, **given: Any) -> dict[str, Any]:
    return llm_call("ro", span_id, sequence_id, [1, 2], [3], **given)


def named(response_id: str, choice: int | None = None) -> str:
    attributes: dict[str, Any] = {semconv.RESPONSE_ID: response_id}
    return json.dumps(attributes if choice is None else attributes | {semconv.CHOICE_INDEX: choice})


def test_a_call_becomes_a_triplet() -> None:
    event = llm_call("ro", "s1", 7, [5, 70_000], [8, 9], resources_version=4, finish_reason="length",
                     attributes=json.dumps({semconv.RESPONSE_ID: "r1", "gen_ai.agent.name": "solver"}))  # fmt: skip
    (triplet,) = adapt(event).triplets
    assert unpack_ids(triplet["prompt_token_ids"]) == [5, 70_000]
    assert unpack_ids(triplet["response_token_ids"]) == [8, 9]
    assert triplet["response_logprobs"] == pack_floats([-0.5, -0.5])
    assert (triplet["sequence_id"], triplet["resources_version"], triplet["finish_reason"]) == (7, 4, "length")
    assert json.loads(triplet["metadata"]) == {
        "response_id": "r1", "agent_name": "solver", "model": "policy", "name": "openai.chat.completion",
    }  # fmt: skip


def test_other_spans_do_not_bear_on_training() -> None:
    assert view_of(span("ro", "s", 1, kind="tool"), 0, 0) is None
    assert view_of(reward_span("ro", "s", 1, None), 0, 0) is None
    # a reward counts whatever kind of span carries it
    assert view_of(span("ro", "s", 1, kind="annotation", reward=0.0), 0, 0) is not None


@given(st.permutations([("c", 2, 9), ("a", 1, 9), ("b", 2, 3), ("d", 2, 9)]))
def test_order_is_by_sequence_then_start_then_id(shuffled: list[tuple[str, int, int]]) -> None:
    adapted = adapt(*[call(name, sequence, started_at_us=START_US + start) for name, sequence, start in shuffled])
    assert ids(adapted) == ["a", "b", "c", "d"]


def test_a_reward_belongs_to_the_latest_call_before_it() -> None:
    adapted = adapt(
        reward_span("ro", "early", 0, 9.0), call("a", 1), reward_span("ro", "r1", 2, 0.1), call("b", 3), call("c", 4),
        reward_span("ro", "r2", 5, 0.2), reward_span("ro", "r3", 6, 0.3),
    )  # fmt: skip
    assert (ids(adapted), rewards(adapted), adapted.last_reward) == (["a", "b", "c"], [0.1, None, 0.3], 0.3)
    assert adapt(call("a", 1)).last_reward is None
    assert rewards(adapt(call("a", 1, reward=0.5))) == [0.5]


def test_one_call_recorded_twice_is_one_triplet() -> None:
    plain = {"prompt_token_ids": None, "response_token_ids": None, "response_logprobs": None}
    gateway = call("gateway", 2, attributes=named("r1"))
    client = call("client", 1, attributes=named("r1"), **plain)
    for events in ([client, gateway], [gateway, client]):
        adapted = adapt(*events, reward_span("ro", "r", 3, 1.0))
        assert (ids(adapted), rewards(adapted), adapted.detail) == (["gateway"], [1.0], None)
    # the id may stand in the response's body only; two calls without an id are two calls
    in_body = call("body", 5, response=json.dumps({"id": "r1", "choices": []}))
    assert ids(adapt(gateway, in_body)) == ["gateway"]
    assert ids(adapt(call("a", 1), call("b", 2))) == ["a", "b"]
    assert ids(adapt(gateway, call("other", 3, attributes=named("r2")))) == ["gateway", "other"]


NO_IDS: dict[str, Any] = {"prompt_token_ids": None, "response_token_ids": None, "response_logprobs": None}
GATEWAY = {"name": "gateway", "instance": "g", "version": ""}
CLIENT = {"name": "runner", "instance": "r", "version": ""}


def timed(span_id: str, at: int, producer: dict[str, str], response: int = 3, **given: Any) -> dict[str, Any]:
    """A call of an upstream that gives each answer the same id, in the seconds ``at`` to ``at + 0.5``."""
    start = START_US + at * 1_000_000
    given = {"attributes": named("constant"), "started_at_us": start, "ended_at_us": start + 500_000} | given
    return llm_call("ro", span_id, at, [1, 2], [response], producer=producer, **given)


@pytest.mark.parametrize("producer", [GATEWAY, CLIENT])
def test_calls_that_share_a_response_id_are_all_kept(producer: dict[str, str]) -> None:
    differing = [timed(f"c{n}", 0, producer, response=n) for n in range(3)]
    assert ids(adapt(*differing)) == ["c0", "c1", "c2"]
    alike = [timed(f"c{n}", n, producer) for n in range(3)]
    assert ids(adapt(*alike, reward_span("ro", "r", 9, 1.0))) == ["c0", "c1", "c2"]
    assert rewards(adapt(*alike, reward_span("ro", "r", 1, 1.0, started_at_us=2**60))) == [None, 1.0, None]


def test_the_gateway_records_a_call_once() -> None:
    at_once = [timed("g0", 0, GATEWAY), timed("g1", 0, GATEWAY)]
    assert ids(adapt(*at_once)) == ["g0", "g1"]
    # one that got no ids is a call of its own, and told
    adapted = adapt(timed("g0", 0, GATEWAY), timed("g1", 1, GATEWAY, **NO_IDS, ids_missing="not_given"))
    assert (ids(adapted), adapted.detail) == (["g0"], "1 of 2 model calls carry no token ids (not_given: span g1)")


@pytest.mark.parametrize("client_has_ids", [True, False])
@pytest.mark.parametrize("response_differs", [True, False])
def test_both_recordings_of_calls_that_share_a_response_id(client_has_ids: bool, response_differs: bool) -> None:
    events: list[dict[str, Any]] = []
    for n in range(3):
        response = n if response_differs else 3
        events.append(timed(f"c{n}", 2 * n, CLIENT, response, **({} if client_has_ids else NO_IDS)))
        events.append(timed(f"g{n}", 2 * n, GATEWAY, response))
        events.append(reward_span("ro", f"r{n}", 2 * n + 1, n / 2))
    for order in (events, events[::-1]):
        adapted = adapt(*order)
        assert (ids(adapted), rewards(adapted), adapted.detail) == (["g0", "g1", "g2"], [0.0, 0.5, 1.0], None)


def test_a_client_that_is_instrumented_twice_records_one_call() -> None:
    inner, outer = timed("inner", 0, CLIENT), timed("outer", 0, CLIENT)
    assert ids(adapt(inner, outer)) == ["inner"]
    bare = [timed(name, 0, CLIENT, **NO_IDS) for name in ("inner", "outer")]
    adapted = adapt(*bare, timed("g", 0, GATEWAY), reward_span("ro", "r", 1, 1.0))
    assert (ids(adapted), rewards(adapted), adapted.detail) == (["g"], [1.0], None)
    # clocks of two machines: the gateway's and a client's need not overlap
    assert ids(adapt(timed("g", 5, GATEWAY), timed("c", 0, CLIENT))) == ["g"]


def test_an_answer_the_gateway_saw_fail_and_the_client_got() -> None:
    assert ids(adapt(timed("g", 0, GATEWAY, status="error"), timed("c", 0, CLIENT))) == ["c"]


def test_the_choices_of_one_call_are_several_triplets() -> None:
    events = [call(f"c{n}", n, attributes=named("r1", n)) for n in range(3)]
    assert ids(adapt(*events)) == ["c0", "c1", "c2"]


def test_calls_without_ids_are_left_out_and_said_so() -> None:
    judge = call("judge", 2, prompt_token_ids=None, response_token_ids=None, ids_missing="upstream_gave_none")
    adapted = adapt(call("a", 1), judge)
    assert (ids(adapted), adapted.reason_code) == (["a"], None)
    assert adapted.detail == "1 of 2 model calls carry no token ids (upstream_gave_none: span judge)"
    alone = adapt(judge)
    assert (alone.triplets, alone.reason_code) == ([], "ids_missing")
    assert "span judge" in (alone.detail or "")
    assert adapt(call("empty", 1, response_token_ids=b"")).reason_code == "ids_missing"


def test_no_calls_and_only_failed_ones() -> None:
    assert adapt().reason_code == "no_model_calls"
    assert adapt(reward_span("ro", "r", 1, 1.0)).reason_code == "no_model_calls"
    failed = adapt(call("a", 1, status="error"), call("b", 2, status="error", response_token_ids=None))
    assert (failed.reason_code, failed.detail) == ("no_model_calls", "all 2 model calls failed")
    # a retry after a failure is the call that counts
    assert ids(adapt(call("a", 1, status="error"), call("b", 2))) == ["b"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_not_finite_makes_the_attempt_unusable(bad: float) -> None:
    adapted = adapt(call("a", 1), llm_call("ro", "b", 2, [1], [2, 3], response_logprobs=pack_floats([-1.0, bad])))
    assert (adapted.triplets, adapted.reason_code) == ([], "nan_logprob")
    assert [(refused.span.span_id, refused.reason_code) for refused in adapted.refused] == [("b", "nan_logprob")]
    # infinities of both signs cancel to nothing finite either
    both = pack_floats([math.inf, -math.inf])
    assert adapt(llm_call("ro", "b", 2, [1], [2, 3], response_logprobs=both)).reason_code == "nan_logprob"


def test_logprobs_of_another_length_are_dropped_with_a_note() -> None:
    adapted = adapt(llm_call("ro", "a", 1, [1], [2, 3], response_logprobs=pack_floats([-1.0])))
    (triplet,) = adapted.triplets
    assert triplet["response_logprobs"] is None
    assert json.loads(triplet["metadata"])["logprobs_dropped"] == "1 logprobs for 2 tokens"
    (without,) = adapt(call("a", 1, response_logprobs=None)).triplets
    assert without["response_logprobs"] is None and "logprobs_dropped" not in json.loads(without["metadata"])


def test_ids_that_are_no_int32s_make_the_attempt_unusable() -> None:
    adapted = adapt(call("a", 1), call("b", 2, prompt_token_ids=pack_ids([1]) + b"\0"))
    assert (adapted.triplets, adapted.reason_code, len(adapted.refused)) == ([], "bad_tokens", 1)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    adapted = adapt(call("a", 1), reward_span("ro", "r1", 2, 0.5), reward_span("ro", "r2", 3, math.nan))
    assert rewards(adapted) == [0.5]
    assert [refused.reason_code for refused in adapted.refused] == ["bad_reward"]
    assert adapted.last_reward is not None and math.isnan(adapted.last_reward)


def test_unreadable_attributes_are_no_obstacle() -> None:
    for text in ("", "not json", "[1]", '{"gen_ai.response.id": 5}'):
        view = view_of(call("a", 1, attributes=text), 0, 0)
        assert isinstance(view, SpanView) and view.response_id is None
