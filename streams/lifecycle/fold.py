"""The lifecycle's state machine: ``fold(state, event) -> (state, effects)``, pure.

Rollout: queuing -> preparing -> running -> succeeded | failed | cancelled, with requeuing between attempts.
Attempt: preparing -> running -> succeeded | failed | timeout | unresponsive (which activity may revive).

What holds whatever the order and however often events come:

- the facts of an attempt (status, holder, reward, reason, times) are a join (:mod:`.attempt`);
- an event that has been folded changes nothing and has no effect the second time;
- an event that comes before what it speaks of is held until that exists;
- a rollout that ended stays ended: only a ``requeue`` or ``start_attempt`` asked for by hand opens a failed or
  cancelled one again, and nothing reopens a succeeded one;
- only the latest attempt decides; what older ones report afterwards is kept with them and changes nothing else.

What depends on the order events are read in: a *decision* (the rollout ended, a further attempt was dispatched) is
taken on the first report that calls for it and is never taken back, since others act on it at once. Two reports
that call for different decisions race, and the one read first wins: a success against a time limit of the same
attempt, a cancel against an attempt's end. Reports about attempts share a partition, so there the log's own order
decides, in every replay alike; only controls against attempts can come out differently. The decision itself is
durable: it is in the table's changelog and on the ``rollouts`` topic before its input is committed.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import attempt_id, derived_rollout_id, event_id
from agl_stream.streams.lifecycle.attempt import STATUSES, join, new_attempt, without_reward
from agl_stream.streams.lifecycle.controls import apply_control
from agl_stream.streams.lifecycle.decide import closed, follow
from agl_stream.streams.lifecycle.effects import Effect, Source
from agl_stream.streams.lifecycle.limits import possible_limits, problem_of_limits
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import (
    ATTEMPT_FIELDS,
    REQUEST_FIELDS,
    HeldEvent,
    RolloutState,
    announcement,
    empty_state,
    is_offered,
    offer,
    offer_number,
)
from agl_stream.streams.lifecycle.step import Input, Step, is_object, parses

HELD_LIMIT = 64
LARGEST_REQUEST_BYTES = 7 * 1024 * 1024
"""A request travels on in its state and its offers, which must stay below the largest record."""
_ATTEMPTS_AHEAD = 8


def complete(event_type: str, event: Event, source: Source) -> Event:
    """``event`` with what its writer left out: event_id and rollout_id from topic, partition and offset, the time
    from the record, also in place of a time that is none (see ``is_time``). Every reader derives the same, so a
    second reading gives the same ids."""
    missing: dict[str, Any] = {}
    if not event["event_id"]:
        missing["event_id"] = event_id(source.topic, source.partition, source.offset)
    at_us = source.time_of(event)
    if at_us != event["occurred_at_us"]:
        missing["occurred_at_us"] = at_us
    if not event["rollout_id"] and event_type == "RolloutRequested":
        missing["rollout_id"] = derived_rollout_id(source.topic, source.partition, source.offset)
    return {**event, **missing} if missing else event


def fold(
    state: RolloutState | None, event_type: str, event: Event, *, source: Source, resources: ResourceView
) -> tuple[RolloutState | None, list[Effect]]:
    """The state after ``event`` and what to do about it.

    ``event`` is complete (see ``complete``) and belongs to the rollout of ``state`` (None: nothing is known of it).
    The returned state is the very same object when the event changed nothing. A change that others can see raises
    ``version`` by one and has a RolloutStateChanged; a new offer has an AttemptDispatched. Nothing is changed in
    place, no clock is read, and an impossible event becomes a RecordRejected instead of an exception.
    """
    before = state if state is not None else empty_state(event["rollout_id"])
    step = Step(resources)
    after = _step(before, Input(event_type, event, source), step)
    if after is before:
        return state, step.effects
    applied = after["applied"]
    if source.offset > applied.get(source.topic, -1):
        after["applied"] = {**applied, source.topic: source.offset}
    if after["request"] is None:
        return after, step.effects
    if _visibly_changed(before, after):
        after["version"] = before["version"] + 1
        after["changed_at_us"] = event["occurred_at_us"]
        step.effects.append(Effect("rollouts", announcement(after)))
    if is_offered(after) and offer_number(before) != offer_number(after):
        step.effects.append(Effect("dispatch", offer(after)))
    return after, step.effects


def _step(state: RolloutState, given: Input, step: Step) -> RolloutState:
    """The same object when nothing changes, else a fresh dict without version and effects of the change."""
    if given.event_type == "RolloutRequested":
        return _requested(state, given, step)
    if given.event_type == "AttemptStatusChanged":
        return _attempt_changed(state, given, step)
    if given.event_type != "ControlRequested":
        step.reject(given, "wrong_event", f"{given.event_type} is no input of the lifecycle")
        return state
    if given.event["action"] == "unknown":
        step.reject(given, "impossible_transition", "a control without a known action")
        return state
    if state["request"] is None:
        return _hold(state, given, step)
    after = apply_control(state, given, step)
    return _release_held(after, step) if len(after["attempts"]) > len(state["attempts"]) else after


# requests


def _requested(state: RolloutState, given: Input, step: Step) -> RolloutState:
    if state["request"] is not None:
        return state
    event = given.event
    at_us = event["occurred_at_us"]
    request = {name: event[name] for name in REQUEST_FIELDS}
    accepted: RolloutState = {**state, "request": request, "requested_at_us": at_us, "status": "queuing"}
    problem = _problem_of(given)
    pinned = step.resources.pin(event["resources_id"], event["resources_version"])
    if problem is not None:
        reason_code, detail = problem
        step.reject(given, reason_code, detail)
        # What cannot be read or carried ends here: everybody downstream may rely on JSON of a bounded size, and on
        # limits that are numbers.
        if reason_code in ("bad_json", "record_too_large"):
            request["input"], request["metadata"] = "null", "{}"
        request["config"] = possible_limits(request["config"])
        accepted = closed(accepted, "failed", reason_code, at_us)
    elif pinned is None:
        version = event["resources_version"]
        asked = event["resources_id"] + ("" if version is None else f"@{version}")
        step.reject(given, "unknown_resources", f"resources {asked} were never published")
        accepted = closed(accepted, "failed", "unknown_resources", at_us)
    else:
        request["resources_id"], request["resources_version"] = pinned
        accepted["attempts"] = [new_attempt(state["rollout_id"], 1, at_us)]
    return _release_held(accepted, step)


def _problem_of(given: Input) -> tuple[str, str] | None:
    """Reason and detail, when a request cannot be accepted whatever the resources."""
    event = given.event
    if given.source.value is not None and len(given.source.value) > LARGEST_REQUEST_BYTES:
        return "record_too_large", f"a request of {len(given.source.value):,} bytes; the largest is 7 MiB"
    if not parses(event["input"]):
        return "bad_json", "input is not JSON, or nested too deep"
    if not is_object(event["metadata"]):
        return "bad_json", "metadata is not a JSON object, or nested too deep"
    if problem := problem_of_limits(event["config"]):
        return "bad_config", problem
    return None


# attempts


def _attempt_changed(state: RolloutState, given: Input, step: Step) -> RolloutState:
    event = given.event
    if event["status"] not in STATUSES:
        step.reject(given, "impossible_transition", "an attempt status that is not known")
        return state
    if event["metadata"] not in ("{}", "") and not is_object(event["metadata"]):
        step.reject(given, "bad_json", "metadata is not a JSON object, or nested too deep")
        return state
    if event["reward"] is not None and not isfinite(event["reward"]):
        step.reject(given, "bad_reward", f"the reward is {event['reward']}")
        event = without_reward(event)
        given = given._replace(event=event)
    number = event["attempt_number"] or _number_of(state, event)
    if number and (number < 0 or event["attempt_id"] != attempt_id(event["rollout_id"], number)):
        step.reject(given, "unknown_attempt", f"{event['attempt_id']} is not attempt {number} of its rollout")
        return state
    if not 0 < number <= len(state["attempts"]):
        if state["request"] is not None and not state["attempts"]:
            step.reject(given, "unknown_attempt", "the rollout was refused and has no attempts")
            return state
        return _hold(state, given, step)
    return _after_report(state, number, event, step)


def _number_of(state: RolloutState, event: Event) -> int:
    """The number of an attempt that is only named by its id (a span knows no number); 0: not a near one."""
    for number in range(1, len(state["attempts"]) + _ATTEMPTS_AHEAD):
        if attempt_id(event["rollout_id"], number) == event["attempt_id"]:
            return number
    return 0


def _after_report(state: RolloutState, number: int, event: Event, step: Step) -> RolloutState:
    was = state["attempts"][number - 1]
    now = join(was, event)
    if now is was:
        return state
    attempts = list(state["attempts"])
    attempts[number - 1] = now
    after = follow({**state, "attempts": attempts}, number, was["status"])
    return _release_held(after, step) if len(after["attempts"]) > len(attempts) else after


# events that came early


def _hold(state: RolloutState, given: Input, step: Step) -> RolloutState:
    if any(held["event"]["event_id"] == given.event["event_id"] for held in state["held"]):
        return state
    if len(state["held"]) >= HELD_LIMIT:
        unknown = "unknown_attempt" if state["request"] is not None else "unknown_rollout"
        step.reject(given, unknown, f"{HELD_LIMIT} events already wait for what they speak of")
        return state
    topic, partition, offset = given.source[:3]
    held: HeldEvent = {
        "event_type": given.event_type,
        "event": given.event,
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }
    return {**state, "held": [*state["held"], held]}


def _release_held(state: RolloutState, step: Step) -> RolloutState:
    """Fold what was held, in the order it came; what still has no attempt stays held."""
    if not state["held"]:
        return state
    after: RolloutState = {**state, "held": []}
    for held in state["held"]:
        source = Source(held["topic"], held["partition"], held["offset"])
        after = _step(after, Input(held["event_type"], held["event"], source), step)
    return after


# small parts


def _visibly_changed(before: RolloutState, after: RolloutState) -> bool:
    """Whether anything that RolloutStateChanged shows is different."""
    if (
        before["status"] != after["status"]
        or before["reason_code"] != after["reason_code"]
        or before["ended_at_us"] != after["ended_at_us"]
        or before["request"] is not after["request"]
        or len(before["attempts"]) != len(after["attempts"])
    ):
        return True
    return any(
        was is not now and any(was[name] != now[name] for name in ATTEMPT_FIELDS)
        for was, now in zip(before["attempts"], after["attempts"], strict=True)
    )
