"""What an agent's result or error means for its attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.consumers.runner.outcome import describe, outcome_of_error, outcome_of_result
from agl_stream.types import Span, SpanCoreFields

SPAN = Span(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, trace_id="0" * 32, span_id="0" * 16, name="x")


@pytest.mark.parametrize(
    ("result", "reward"),
    [(None, None), (1, 1.0), (0, 0.0), (True, 1.0), (False, 0.0), (0.25, 0.25), (Fraction(1, 2), 0.5)],
)
def test_nothing_and_numbers_succeed(result: object, reward: float | None) -> None:
    outcome = outcome_of_result(result)
    assert (outcome.status, outcome.reward, outcome.reason_code) == ("succeeded", reward, None)


def test_spans_succeed() -> None:
    core = SpanCoreFields(name="y")
    assert outcome_of_result([SPAN, core]).spans == (SPAN, core)
    assert outcome_of_result([]).status == "succeeded"


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_fails(reward: float) -> None:
    outcome = outcome_of_result(reward)
    assert (outcome.status, outcome.reason_code) == ("failed", "bad_reward")
    assert outcome.reward is None


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"reward": 1}, "type dict"),
        ("1.0", "type str"),
        ([SPAN, 3], "type int"),
        ([1.0], "type float"),
        (1j, "type complex"),
        (Decimal("1"), "decimal.Decimal"),
        (object(), "type object"),
    ],
)
def test_anything_else_fails_and_says_what_it_was(result: object, said: str) -> None:
    outcome = outcome_of_result(result)
    assert (outcome.status, outcome.reason_code) == ("failed", "bad_result")
    assert outcome.detail is not None and outcome.detail.startswith("TypeError: ") and said in outcome.detail


def test_a_forgotten_await_is_named() -> None:
    async def agent() -> float:
        return 1.0

    coroutine = agent()
    try:
        assert "async def" in (outcome_of_result(coroutine).detail or "")
    finally:
        coroutine.close()


def test_errors_carry_type_and_message_only() -> None:
    outcome = outcome_of_error(ValueError("no\nsuch\ttool"))
    assert (outcome.status, outcome.reason_code, outcome.detail) == (
        "failed",
        "agent_error",
        "ValueError: no such tool",
    )


def test_a_broken_model_endpoint_is_told_apart() -> None:
    import httpx
    import openai

    request = httpx.Request("POST", "http://127.0.0.1:1/v1/chat/completions")
    unreachable = openai.APIConnectionError(request=request)
    broken = openai.InternalServerError("boom", response=httpx.Response(502, request=request), body=None)
    wrong = openai.BadRequestError("bad", response=httpx.Response(400, request=request), body=None)
    codes = [outcome_of_error(error).reason_code for error in (unreachable, broken, wrong, ConnectionError("db"))]
    assert codes == ["upstream_error", "upstream_error", "agent_error", "agent_error"]


class Hostile(Exception):
    """Raises whatever is asked of it, and cannot be printed."""

    status_code = property(lambda self: 1 / 0)
    __module__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __float__ = __iter__ = __len__ = __str__


class Unreadable:
    __class__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


class HostileList(list[Any]):
    def __iter__(self) -> Any:
        raise LookupError("no items")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (lambda: 10**400, "bad_reward"),
        (lambda: Fraction(10**400), "bad_reward"),
        (Hostile, "bad_result"),
        (Unreadable, "bad_result"),
        (lambda: HostileList([1]), "bad_result"),
        (lambda: [Unreadable()], "bad_result"),
    ],
)
def test_results_that_cannot_be_looked_at_are_outcomes(result: Callable[[], object], code: str) -> None:
    outcome = outcome_of_result(result())
    assert (outcome.status, outcome.reason_code) == ("failed", code)
    assert outcome.detail


def test_errors_that_cannot_be_printed_are_outcomes() -> None:
    assert outcome_of_error(Hostile()).detail == "Hostile: <Hostile, whose str raises SystemExit>"
    hostile_client = type("APIError", (Hostile,), {"__module__": "openai"})
    assert outcome_of_error(hostile_client()).reason_code == "agent_error"
    broken_text = outcome_of_error(ValueError("half \ud83d of a pair")).detail
    assert broken_text == "ValueError: half \\ud83d of a pair"
    assert len(outcome_of_error(ValueError("long " * 10**6)).detail or "") <= 500


@given(st.text(st.characters(exclude_categories=()), max_size=5000))
def test_details_are_one_bounded_line(text: str) -> None:
    detail = describe(RuntimeError(text))
    assert len(detail) <= 500 and detail.encode()
    assert len(detail.splitlines()) <= 1
