"""What a rollout's end makes of its spans: reasons, rewards, and the content hash."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.schemas.codec import Codec
from agl_stream.schemas.reasons import REASONS
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.outcome import Outcome, content_hash, ending_of, join, record_bytes
from agl_stream.streams.joiner.spans import view_of

from ..makers import ended, llm_call, reward_span, rollout

CALL = llm_call("ro-1", "a", 1, [1, 2], [3])


def joined(
    state: dict[str, Any], *events: dict[str, Any], total: int | None = None, offset: int = 10,
    max_bytes: int | None = None,
) -> Outcome:  # fmt: skip
    views = [view_of(event, 1, offset + n) for n, event in enumerate(events)]
    relevant = [view for view in views if view is not None]
    spans_total = len(events) if total is None else total
    return join("ro-1", ending_of(state), relevant, spans_total, 1, LlmCalls(), max_bytes=max_bytes)


def test_a_rollout_that_succeeded() -> None:
    state = ended("ro-1", reward=0.5, group_id="g", group_size=8, resources_id="rs", resources_version=4)
    event = joined(state, CALL, total=3).revised(0)
    assert Codec().decode(Codec().encode("TripletsJoined", event))[1]["triplets"] == event["triplets"]
    told = {name: event[name] for name in ("status", "reason_code", "reward", "run_id", "group_id", "group_size")}
    assert told == {
        "status": "succeeded", "reason_code": None, "reward": 0.5, "run_id": "run-1", "group_id": "g", "group_size": 8,
    }  # fmt: skip
    assert (event["resources_id"], event["resources_version"], event["attempt_number"]) == ("rs", 4, 1)
    assert (event["spans_total"], event["spans_partition"], event["spans_first_offset"]) == (3, 1, 10)


def test_the_reported_reward_beats_the_spans_and_the_spans_stand_in() -> None:
    spans = (CALL, reward_span("ro-1", "r", 2, 0.25))
    assert joined(ended("ro-1", reward=0.5), *spans).event["reward"] == 0.5
    assert joined(ended("ro-1", reward=0.0), *spans).event["reward"] == 0.0
    assert joined(ended("ro-1"), *spans).event["reward"] == 0.25


def test_no_reward_is_a_state_and_keeps_the_triplets() -> None:
    event = joined(ended("ro-1"), CALL).event
    assert (event["reward"], event["reason_code"], len(event["triplets"])) == (None, "no_reward", 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number(bad: float) -> None:
    for state, spans in ((ended("ro-1", reward=bad), ()), (ended("ro-1"), (reward_span("ro-1", "r", 2, bad),))):
        event = joined(state, CALL, *spans).event
        assert (event["reward"], event["reason_code"], event["triplets"]) == (None, "bad_reward", [])


def test_rollouts_that_did_not_succeed_have_no_triplets() -> None:
    failed = joined(ended("ro-1", status="failed", reason_code="attempt_timeout"), CALL).event
    assert (failed["status"], failed["reason_code"], failed["triplets"]) == ("failed", "attempt_timeout", [])
    by_attempt = joined(ended("ro-1", status="failed", attempt_reason="worker_lost", reward=0.5), CALL).event
    assert (by_attempt["reason_code"], by_attempt["reward"]) == ("worker_lost", 0.5)
    cancelled = joined(rollout("ro-1", 2, "cancelled")).event
    assert (cancelled["reason_code"], cancelled["attempt_id"], cancelled["attempt_number"]) == ("cancelled", "", 0)


def test_every_reason_is_in_the_catalogue() -> None:
    bad_tokens = llm_call("ro-1", "a", 1, [1], [2], prompt_token_ids=b"abc")
    nan = llm_call("ro-1", "a", 1, [1], [2], response_logprobs=b"\0\0\xc0\x7f")
    without = llm_call("ro-1", "a", 1, [1], [2], response_token_ids=None)
    good = ended("ro-1", reward=1.0)
    found = {joined(good, *spans).event["reason_code"] for spans in ((), (bad_tokens,), (nan,), (without,))}
    assert found == {"no_model_calls", "bad_tokens", "nan_logprob", "ids_missing"}
    found |= {joined(ended("ro-1", status=status)).event["reason_code"] for status in ("failed", "cancelled")}
    assert found | {"no_reward", "bad_reward"} <= REASONS.keys()


def test_the_hash_is_of_the_training_data_only() -> None:
    state = ended("ro-1", reward=0.5)
    base = joined(state, CALL).event["content_hash"]
    assert joined(state, CALL, total=99, offset=500).event["content_hash"] == base
    assert joined(ended("ro-1", reward=0.5, version=9, group_id="other"), CALL).event["content_hash"] == base
    different = [
        joined(ended("ro-1", reward=0.25), CALL),
        joined(ended("ro-1", reward=0.5, number=2), CALL),
        joined(state, CALL | {"response_logprobs": b"\0\0\0\0"}),
        joined(state, CALL | {"response_logprobs": None}),
        joined(state, CALL | {"prompt_token_ids": CALL["prompt_token_ids"] * 2}),
        joined(state, CALL | {"resources_version": 9}),
        joined(state, CALL, reward_span("ro-1", "r", 2, 0.1)),
        joined(state, CALL, llm_call("ro-1", "b", 2, [1], [2])),
        joined(ended("ro-1", status="failed", reward=0.5), CALL),
    ]
    hashes = [outcome.event["content_hash"] for outcome in different]
    assert len({base, *hashes}) == len(different) + 1
    # moving bytes from one field to the next makes another hash
    one = CALL | {"prompt_token_ids": b"\1\0\0\0\2\0\0\0", "response_token_ids": b"\3\0\0\0", "response_logprobs": None}
    two = CALL | {"prompt_token_ids": b"\1\0\0\0", "response_token_ids": b"\2\0\0\0\3\0\0\0", "response_logprobs": None}
    assert joined(state, one).event["content_hash"] != joined(state, two).event["content_hash"]


def test_the_same_revision_again_is_the_same_event() -> None:
    outcome = joined(ended("ro-1", reward=0.5), CALL)
    assert outcome.revised(1) == joined(ended("ro-1", reward=0.5), CALL).revised(1)
    assert outcome.revised(1)["event_id"] != outcome.revised(2)["event_id"]


def test_triplets_too_large_for_a_record_are_dropped_with_sizes_and_a_remedy() -> None:
    state = ended("ro-1", reward=0.5)
    calls = [llm_call("ro-1", f"s{n}", n, list(range(1000 * (n + 1))), [1] * 10) for n in range(3)]
    whole = joined(state, *calls).event
    assert joined(state, *calls, max_bytes=record_bytes(whole)).event == whole
    outcome = joined(state, *calls, max_bytes=record_bytes(whole) - 1)
    event = outcome.event
    assert (event["status"], event["reward"], event["spans_total"]) == ("succeeded", 0.5, 3)
    assert (event["reason_code"], event["triplets"]) == ("record_too_large", [])
    assert event["content_hash"] == content_hash(event) != whole["content_hash"]
    assert [(refused.span.span_id, refused.reason_code) for refused in outcome.refused] == [("s2", "record_too_large")]
    for told in ("3 model calls with 6,000 prompt and 30 response tokens", "AGL_STREAM_MAX_RECORD_BYTES=", "shorter"):
        assert told in event["detail"]
    assert "record_too_large" in REASONS
    # a rollout that has no triplets has nothing to drop
    assert joined(ended("ro-1", status="failed"), *calls, max_bytes=10).event["reason_code"] == "agent_error"


def test_a_long_detail_is_cut() -> None:
    state = ended("ro-1", status="failed")
    state["attempts"][-1]["detail"] = "x" * 9_000_000
    assert joined(state).event["detail"] == "x" * 1000


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 400), st.text(max_size=300)), max_size=4), st.text())
def test_a_record_is_never_larger_than_was_reckoned(shapes: list[tuple[int, int, str]], group_id: str) -> None:
    calls = [
        llm_call("ro-1", f"s{n}", n, [7] * (1 + prompt), [8] * response, finish_reason=text)
        for n, (prompt, response, text) in enumerate(shapes)
    ]
    event = joined(ended("ro-1", reward=0.5, group_id=group_id), *calls).revised(2**31 - 1)
    sent = {**event, "occurred_at_us": 2**60, "producer": {"name": "joiner", "instance": "i" * 255, "version": "v"}}
    reckoned = record_bytes(event)
    assert len(Codec().encode("TripletsJoined", sent)) + len(group_id.encode()) <= reckoned
    assert reckoned <= len(Codec().encode("TripletsJoined", sent)) + 2500 + 200 * len(calls)
