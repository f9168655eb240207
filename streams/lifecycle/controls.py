"""Controls: cancel, requeue, start_attempt, update. Pure; part of :mod:`.fold`.

A control is applied once per event_id. It speaks either of an attempt (``attempt_id`` given) or of the rollout:

- of an attempt: it holds only while that attempt is the latest and in the state the control supposes, so one that
  comes too late does nothing. The watchdog speaks so: ``requeue`` ends the backoff after an attempt,
  ``start_attempt`` offers an attempt again that nobody took (``payload`` has the ``delivery`` it saw).
- of the rollout, by hand: ``requeue`` and ``start_attempt`` make a further attempt, beyond ``max_attempts`` and for
  failed and cancelled rollouts, too.
"""

from __future__ import annotations

from typing import Any

import orjson

from agl_stream.schemas.events import Event
from agl_stream.streams.lifecycle.attempt import offered_again
from agl_stream.streams.lifecycle.decide import closed, next_attempt
from agl_stream.streams.lifecycle.limits import problem_of_limits
from agl_stream.streams.lifecycle.state import CONTROLS_KEPT, RolloutState, is_offered, is_terminal
from agl_stream.streams.lifecycle.step import Input, Step, is_object

_LIVE = ("preparing", "running")
_MODES = ("train", "val", "test", "unknown")


def apply_control(state: RolloutState, given: Input, step: Step) -> RolloutState:
    """``state`` (with a request) after a ControlRequested; the same object when it changes nothing."""
    event = given.event
    if event["event_id"] in state["controls"]:
        return state
    if event["attempt_id"] is not None and event["action"] != "update":
        after = _about_attempt(state, event)
    else:
        after = _by_hand(state, given, step)
    if after is None:
        return state
    return {**after, "controls": [*after["controls"], event["event_id"]][-CONTROLS_KEPT:]}


def _about_attempt(state: RolloutState, event: Event) -> RolloutState:
    if not state["attempts"] or is_terminal(state):
        return state
    latest = state["attempts"][-1]
    if latest["attempt_id"] != event["attempt_id"]:
        return state
    action = event["action"]
    if action == "cancel" and latest["status"] in _LIVE:
        return closed(state, "cancelled", "cancelled", event["occurred_at_us"])
    if action == "requeue" and state["waiting"]:
        return next_attempt(state, event["occurred_at_us"])
    if action == "start_attempt" and is_offered(state) and _delivery_seen(event) in (None, latest["delivery"]):
        again = offered_again(latest, event["occurred_at_us"])
        return {**state, "attempts": [*state["attempts"][:-1], again]}
    return state


def _delivery_seen(event: Event) -> int | None:
    """The delivery the writer wants replaced; None: whichever is current."""
    payload = orjson.loads(event["payload"]) if is_object(event["payload"]) else {}
    seen = payload.get("delivery")
    return seen if isinstance(seen, int) else None


def _by_hand(state: RolloutState, given: Input, step: Step) -> RolloutState | None:
    """None: rejected, so nothing to remember."""
    event = given.event
    action, at_us = event["action"], event["occurred_at_us"]
    if action == "cancel":
        return _cancel(state, at_us)
    if action == "update":
        return _update(state, given, step)
    if state["status"] == "succeeded":
        step.reject(given, "impossible_transition", "the rollout has succeeded; request a new one")
        return None
    if not state["attempts"]:
        step.reject(given, "impossible_transition", "the rollout was refused; request it anew under another id")
        return None
    if action == "requeue" and is_offered(state):
        return state
    return next_attempt(state, at_us)


def _cancel(state: RolloutState, at_us: int) -> RolloutState:
    if state["status"] == "cancelled":
        # the runner's report of this very cancel may have been read first
        return {**state, "ended_at_us": min(state["ended_at_us"] or at_us, at_us), "decided_by": 0}
    return state if is_terminal(state) else closed(state, "cancelled", "cancelled", at_us)


def _update(state: RolloutState, given: Input, step: Step) -> RolloutState | None:
    """Fields of the request, each by the latest update; ``status`` cancelled, requeuing and queuing as the control
    of that meaning. Attempts offered before keep what they were offered with."""
    event = given.event
    if not is_object(event["payload"]):
        step.reject(given, "bad_json", "payload is not a JSON object, or nested too deep")
        return None
    fields: dict[str, Any] = orjson.loads(event["payload"])
    status = fields.pop("status", None)
    if problem := _problem_of(fields):
        step.reject(given, "bad_config", problem)
        return None
    if status not in (None, "cancelled", "queuing", "requeuing"):
        step.reject(given, "impossible_transition", f"status {status!r} cannot be set by hand")
        return None
    changed = _changes(state, fields, event, step)
    if changed is None:
        step.reject(given, "unknown_resources", f"resources {fields['resources_id']} were never published")
        return None
    if status == "cancelled":
        return _cancel(changed, event["occurred_at_us"])
    if status in ("queuing", "requeuing"):
        requeue = given._replace(event={**event, "action": "requeue"})
        return _by_hand(changed, requeue, step)
    return changed


def _problem_of(fields: dict[str, Any]) -> str:
    config = fields.get("config", {})
    if not isinstance(config, dict):
        return "config is not an object"
    if problem := problem_of_limits(config):
        return problem
    if not isinstance(fields.get("metadata", {}), dict):
        return "metadata is not an object"
    if fields.get("mode", "train") not in _MODES:
        return f"mode cannot be {fields['mode']!r}"
    if not isinstance(fields.get("resources_id", ""), str):
        return "resources_id is not a string"
    unknown = set(fields) - {"input", "mode", "resources_id", "config", "metadata"}
    return f"unknown field {sorted(unknown)[0]}" if unknown else ""


def _changes(state: RolloutState, fields: dict[str, Any], event: Event, step: Step) -> RolloutState | None:
    """``state`` with the fields that no later update has set; None when resources do not exist."""
    stamp = [event["occurred_at_us"], event["event_id"]]
    request, stamps = dict(state["request"] or {}), dict(state["stamps"])

    def is_newest(name: str) -> bool:
        if name in stamps and stamps[name] >= stamp:
            return False
        stamps[name] = stamp
        return True

    for name, value in fields.items():
        if name == "config":
            newest = {key: limit for key, limit in value.items() if is_newest(f"config.{key}")}
            request["config"] = {**request["config"], **newest}
        elif not is_newest(name):
            continue
        elif name == "resources_id":
            pinned = step.resources.pin(value, None)
            if pinned is None:
                return None
            request["resources_id"], request["resources_version"] = pinned
        elif name == "mode":
            request["mode"] = value
        else:
            request[name] = orjson.dumps(value).decode()
            if name == "input":
                request["input_ref"] = None
    return {**state, "request": request, "stamps": stamps}
