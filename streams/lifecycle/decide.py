"""What an attempt's status means for its rollout: the decisions. Pure; see :mod:`.fold` for what holds of them."""

from __future__ import annotations

from agl_stream.streams.lifecycle.attempt import AttemptFacts, new_attempt
from agl_stream.streams.lifecycle.state import RolloutState, is_terminal

_REASON_OF_STATUS = {"timeout": "attempt_timeout", "unresponsive": "attempt_unresponsive"}


def follow(state: RolloutState, number: int, status_before: str) -> RolloutState:
    """``state`` (a fresh dict) after attempt ``number`` learnt something; may change it in place."""
    attempt = state["attempts"][number - 1]
    if is_terminal(state):
        return _refine_end(state, attempt)
    if number != len(state["attempts"]):
        return state
    # An attempt that is over and learns more is judged again only when its status moves: its rollout may be waiting
    # for the next attempt under rules that have been updated since.
    if attempt["status"] == status_before and attempt["status"] not in ("preparing", "running"):
        return state
    return _decide(state, attempt)


def _decide(state: RolloutState, attempt: AttemptFacts) -> RolloutState:
    status = attempt["status"]
    if status == "preparing":
        if attempt["claim"] is not None:
            state["status"] = "preparing"
            state["waiting"] = False
        return state
    if status == "running":
        state["status"] = "running"
        state["waiting"] = False
        return state
    meaning = outcome(attempt)
    if meaning == "failed" and _may_retry(state, attempt):
        at_us = _over_at_us(attempt)
        if state["request"]["config"]["backoff_seconds"] > 0:  # type: ignore[index]
            state["status"] = "requeuing"
            state["waiting"] = True
            return state
        return next_attempt(state, at_us)
    state["status"] = meaning
    state["reason_code"] = reason_of(attempt)
    state["ended_at_us"] = _over_at_us(attempt)
    state["decided_by"] = attempt["attempt_number"]
    state["waiting"] = False
    return state


def outcome(attempt: AttemptFacts) -> str:
    """What the end of the deciding attempt makes of its rollout: succeeded, cancelled or failed.

    A runner that was told to stop reports ``failed`` with reason ``cancelled``. Its report may be read before the
    cancel itself, and means the same.
    """
    if attempt["status"] == "succeeded":
        return "succeeded"
    if attempt["status"] == "failed" and attempt["reason_code"] == "cancelled":
        return "cancelled"
    return "failed"


def reason_of(attempt: AttemptFacts) -> str | None:
    """The rollout's reason when this attempt decides it."""
    if attempt["status"] == "succeeded":
        return None
    return attempt["reason_code"] or _REASON_OF_STATUS.get(attempt["status"])


def closed(state: RolloutState, status: str, reason_code: str | None, at_us: int) -> RolloutState:
    """``state`` ended by something else than an attempt."""
    return {
        **state,
        "status": status,
        "reason_code": reason_code,
        "ended_at_us": at_us,
        "decided_by": 0,
        "waiting": False,
    }


def next_attempt(state: RolloutState, at_us: int) -> RolloutState:
    """``state`` with a further attempt offered; an end that was reached is lifted."""
    return {
        **state,
        "status": "requeuing",
        "reason_code": None,
        "ended_at_us": None,
        "decided_by": 0,
        "waiting": False,
        "attempts": [*state["attempts"], new_attempt(state["rollout_id"], len(state["attempts"]) + 1, at_us)],
    }


def _may_retry(state: RolloutState, attempt: AttemptFacts) -> bool:
    request = state["request"]
    assert request is not None
    config = request["config"]
    return attempt["status"] in config["retry_condition"] and attempt["attempt_number"] < config["max_attempts"]


def _over_at_us(attempt: AttemptFacts) -> int:
    said = attempt["end"] or attempt["silence"]
    assert said is not None
    return said["at_us"]


def _refine_end(state: RolloutState, attempt: AttemptFacts) -> RolloutState:
    """Status stays. A second report of the same end may carry an earlier time or the first cause; and a runner that
    reports the cancel may date it before the control that was read first."""
    if attempt["status"] in ("preparing", "running"):
        return state
    meaning = outcome(attempt)
    if state["decided_by"] == attempt["attempt_number"] and meaning == state["status"]:
        state["reason_code"] = reason_of(attempt)
        state["ended_at_us"] = _over_at_us(attempt)
    elif state["status"] == "cancelled" == meaning and attempt["attempt_number"] == len(state["attempts"]):
        state["ended_at_us"] = min(state["ended_at_us"] or 0, _over_at_us(attempt))
    return state
