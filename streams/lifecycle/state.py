"""What the lifecycle keeps per rollout, and how it looks on the log.

A state is a plain dict that goes to JSON and back unchanged (it is the value of the processor's table). It holds
*facts* rather than a last message: per attempt the joined facts of :mod:`.attempt`, and for the rollout the
decisions that were taken on them. Functions here and in :mod:`.fold` never change a state in place.
"""

from __future__ import annotations

from typing import Any, TypedDict

import orjson

from agl_stream.errors import AglStreamError
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.lifecycle.attempt import AttemptFacts
from agl_stream.streams.lifecycle.limits import possible_limits

FORMAT = 1
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
REQUEST_FIELDS = (
    "input",
    "input_ref",
    "mode",
    "resources_id",
    "resources_version",
    "config",
    "metadata",
    "run_id",
    "group_id",
    "group_size",
)
ATTEMPT_FIELDS = (
    "attempt_id",
    "attempt_number",
    "status",
    "delivery",
    "worker_id",
    "worker_instance",
    "dispatched_at_us",
    "started_at_us",
    "ended_at_us",
    "reward",
    "reason_code",
    "detail",
    "metadata",
)


class HeldEvent(TypedDict):
    """An event that came before what it speaks of: before the request, or before its attempt was dispatched."""

    event_type: str
    event: Event
    topic: str
    partition: int
    offset: int


class RolloutState(TypedDict):
    """Everything the fold knows of one rollout. ``request`` is None while only early events are known."""

    rollout_id: str
    version: int
    request: dict[str, Any] | None
    requested_at_us: int
    status: str
    reason_code: str | None
    ended_at_us: int | None
    changed_at_us: int
    decided_by: int
    """Number of the attempt whose end decided the rollout; 0: a control or the request itself did, or nothing has."""
    waiting: bool
    """The latest attempt ended, another one follows, and its backoff has not passed."""
    attempts: list[AttemptFacts]
    held: list[HeldEvent]
    controls: list[str]
    """Ids of controls applied, so that a second delivery of one does nothing. The last CONTROLS_KEPT of them."""
    stamps: dict[str, list[Any]]
    """[occurred_at_us, event_id] of the update that last set a field of the request."""
    applied: dict[str, int]
    """Topic -> highest offset that changed this state: tells a record read again after a crash from a new one."""


CONTROLS_KEPT = 64


def empty_state(rollout_id: str) -> RolloutState:
    """The state of a rollout nobody has requested yet."""
    return {
        "rollout_id": rollout_id,
        "version": 0,
        "request": None,
        "requested_at_us": 0,
        "status": "unknown",
        "reason_code": None,
        "ended_at_us": None,
        "changed_at_us": 0,
        "decided_by": 0,
        "waiting": False,
        "attempts": [],
        "held": [],
        "controls": [],
        "stamps": {},
        "applied": {},
    }


def is_terminal(state: RolloutState) -> bool:
    return state["status"] in TERMINAL


def is_offered(state: RolloutState) -> bool:
    """Whether the latest attempt has been dispatched and nobody is known to have taken it."""
    if not state["attempts"] or state["status"] in TERMINAL or state["waiting"]:
        return False
    latest = state["attempts"][-1]
    return latest["status"] == "preparing" and latest["claim"] is None


def offer_number(state: RolloutState) -> tuple[int, int]:
    """(attempt number, delivery) of the latest offer; (0, 0) before the first."""
    if not state["attempts"]:
        return 0, 0
    latest = state["attempts"][-1]
    return latest["attempt_number"], latest["delivery"]


def announcement(state: RolloutState) -> Event:
    """The RolloutStateChanged of this state, without ``producer``. The same version has the same event_id."""
    request = state["request"]
    assert request is not None
    event: Event = {name: request[name] for name in REQUEST_FIELDS}
    event["event_id"] = event_id("rollout", state["rollout_id"], state["version"])
    event["occurred_at_us"] = state["changed_at_us"]
    event["rollout_id"] = state["rollout_id"]
    event["version"] = state["version"]
    event["status"] = state["status"]
    event["reason_code"] = state["reason_code"]
    event["requested_at_us"] = state["requested_at_us"]
    event["ended_at_us"] = state["ended_at_us"]
    event["attempts"] = [{name: attempt[name] for name in ATTEMPT_FIELDS} for attempt in state["attempts"]]
    return event


def offer(state: RolloutState) -> Event:
    """The AttemptDispatched of the latest attempt, without ``producer``. One event_id per attempt, delivery and what it
    carries: an offer told again after a crash has the request as updated since, and is not the same event then."""
    request = state["request"]
    assert request is not None
    latest = state["attempts"][-1]
    event: Event = {name: request[name] for name in REQUEST_FIELDS}
    updates = [part for name, stamp in sorted(state["stamps"].items()) for part in (name, *stamp)]
    event["event_id"] = event_id("dispatch", latest["attempt_id"], latest["delivery"], *updates)
    event["occurred_at_us"] = latest["dispatched_at_us"]
    event["rollout_id"] = state["rollout_id"]
    event["attempt_id"] = latest["attempt_id"]
    event["attempt_number"] = latest["attempt_number"]
    event["delivery"] = latest["delivery"]
    event["requested_at_us"] = state["requested_at_us"]
    return event


def dump_state(state: RolloutState) -> bytes:
    """JSON for the table's changelog."""
    return orjson.dumps({"format": FORMAT, **state})


def load_state(value: bytes) -> RolloutState:
    """The state of ``dump_state``. Raises AglStreamError for a format this version does not know.

    Limits that were kept before they were checked, and went through JSON as null, are the schema's defaults.
    """
    loaded = orjson.loads(value)
    if loaded.pop("format", None) != FORMAT:
        raise AglStreamError(
            "the lifecycle's table was written by another version of agl-stream; run that version, or delete the "
            "lifecycle changelog topic and let the table be built anew"
        )
    if (request := loaded.get("request")) is not None:
        request["config"] = possible_limits(request["config"])
    return loaded
