"""Why a running attempt is stopped from outside, and what to report of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agl_stream.consumers.runner.events import Claim
from agl_stream.schemas.events import Event

_TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
_ENDED = frozenset({"succeeded", "failed", "timeout"})


@dataclass(frozen=True, slots=True)
class Stop:
    """``report`` False: the log already says how the attempt ended, or another worker now speaks for it."""

    status: Literal["failed", "timeout"]
    reason_code: str
    detail: str
    report: bool = True


CANCELLED = Stop("failed", "cancelled", "the rollout was cancelled")
RUNNER_STOPPING = Stop("failed", "runner_stopping", "the runner stopped before the attempt ended")


def timed_out(limit_seconds: float) -> Stop:
    return Stop("timeout", "attempt_timeout", f"the attempt ran longer than timeout_seconds={limit_seconds:g}")


def stop_for_state(state: Event, claim: Claim, worker_instance: str) -> Stop | None:
    """What a RolloutStateChanged of the claim's rollout means for an attempt that runs here; None: go on.

    The attempt is stopped when nothing it does can count any more: its rollout ended, a later attempt was made, or
    a later delivery of the same attempt went to another worker. Silence (``unresponsive``) alone does not stop it,
    since activity revives it.
    """
    if state["status"] == "cancelled":
        return CANCELLED
    number, delivery = claim.dispatch["attempt_number"], claim.delivery
    attempts = {attempt["attempt_number"]: attempt for attempt in state["attempts"]}
    ours = attempts.get(number)
    if ours is not None and ours["delivery"] > delivery and ours["worker_instance"] not in (None, worker_instance):
        return Stop("failed", "attempt_fenced", "a later delivery of the attempt runs elsewhere", report=False)
    report = ours is None or ours["status"] not in _ENDED
    if any(other > number for other in attempts):
        return Stop("failed", "attempt_fenced", "a later attempt was made", report=report)
    if state["status"] in _TERMINAL:
        return Stop("failed", "attempt_fenced", f"the rollout ended as {state['status']}", report=report)
    return None
