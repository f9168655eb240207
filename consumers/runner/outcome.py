"""How an attempt ended, from what its agent returned or raised. Pure."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agl_stream.producers.attributes import safe_text
from agl_stream.types import Span, SpanCoreFields

_DETAIL_LIMIT = 500
_MODEL_CLIENTS = ("openai", "anthropic", "litellm")
_UNREACHABLE = ("APIConnectionError", "APITimeoutError")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt. ``reward`` is the returned one; ``spans`` are returned ones, still to be written."""

    status: Literal["succeeded", "failed", "timeout"]
    reward: float | None = None
    spans: tuple[Any, ...] = ()
    reason_code: str | None = None
    detail: str | None = None
    error: BaseException | None = None


def outcome_of_result(result: Any) -> Outcome:
    """None, a number (the reward; True is 1.0) or a sequence of spans is success; anything else a failed attempt
    that says what was returned. A reward that is not finite, or too large for a float, fails: it would poison every
    mean it meets. Never raises: what fails when it is looked at is a ``bad_result``, too."""
    try:
        return _judged(result)
    except BaseException as error:  # noqa: BLE001 - the result's own methods are foreign code, and may raise anything
        kind = type(result).__name__
        return Outcome(
            "failed",
            reason_code="bad_result",
            detail=shorten(f"the agent returned a value of type {kind} that cannot be read: {describe(error)}"),
        )


def _judged(result: Any) -> Outcome:
    if result is None:
        return Outcome("succeeded")
    if isinstance(result, numbers.Real):
        try:
            reward = float(result)
        except OverflowError:
            detail = "the agent returned a reward that is too large for a float"
            return Outcome("failed", reason_code="bad_reward", detail=detail)
        if math.isfinite(reward):
            return Outcome("succeeded", reward=reward)
        return Outcome("failed", reason_code="bad_reward", detail=f"the agent returned the reward {reward}")
    if isinstance(result, list | tuple):
        strange = next((item for item in result if not is_span(item)), None)
        if strange is None:
            return Outcome("succeeded", spans=tuple(result))
        return _bad_result(f"a {type(result).__name__} with {_named(strange)} in it")
    return _bad_result(_named(result))


def outcome_of_error(error: BaseException) -> Outcome:
    """A failed attempt that carries the error's type and first words, never its traceback.

    A model endpoint that could not be reached or broke is told apart (``upstream_error``): it says nothing about
    the policy, so the attempt must not count as one the agent lost.
    """
    code = "upstream_error" if is_upstream_failure(error) else "agent_error"
    return Outcome("failed", reason_code=code, detail=describe(error), error=error)


def is_upstream_failure(error: BaseException) -> bool:
    """Whether a model client says that its server was unreachable or failed (5xx, 429)."""
    kind = type(error)
    if str(kind.__module__).partition(".")[0] not in _MODEL_CLIENTS:
        return False
    try:
        status = getattr(error, "status_code", None)
    except Exception:  # noqa: BLE001 - a property of the client's
        status = None
    return kind.__name__ in _UNREACHABLE or (isinstance(status, int) and (status >= 500 or status == 429))


def is_span(item: Any) -> bool:
    """A Span, its core fields, or an OpenTelemetry ReadableSpan (known by its shape, so as not to import it)."""
    return isinstance(item, Span | SpanCoreFields) or (
        hasattr(item, "get_span_context") and hasattr(item, "attributes") and hasattr(item, "start_time")
    )


def describe(error: BaseException) -> str:
    """``Type: message`` on one line, cut to a bounded length, with a UTF-8 form. Never raises."""
    said = safe_text(error)
    return shorten(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def shorten(text: str) -> str:
    """One line of a bounded length."""
    line = " ".join(text[: _DETAIL_LIMIT * 4].split())
    return line if len(line) <= _DETAIL_LIMIT else line[: _DETAIL_LIMIT - 1] + "…"


def _bad_result(what: str) -> Outcome:
    detail = f"TypeError: the agent returned {what}; return None, a number (the reward) or a list of spans"
    return Outcome("failed", reason_code="bad_result", detail=shorten(detail))


def _named(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    hint = ""
    if hasattr(value, "__await__"):
        hint = " (declare the agent with async def)"
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        hint = f" of {len(value)}"
    return f"a value of type {name}{hint}"
