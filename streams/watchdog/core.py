"""What is due: from a view and a time to the events that say so. Pure.

Each event's id follows from what it says of which attempt in which state, so that two watchdogs, or one that repeats
itself, say it once as far as the lifecycle is concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.watchdog.view import OpenRollout, View, length_us

_LOST_GRACE_US = 3_000_000
_MOST_DOUBLINGS = 64
"""Of a backoff of a microsecond: half a million years."""


class Due(NamedTuple):
    """One event for one topic (without namespace)."""

    topic: str
    event: Event


@dataclass(frozen=True)
class Limits:
    """The watchdog's own limits, in microseconds."""

    claim_lease_us: int
    worker_lost_us: int
    """Silence of a worker after which it counts as dead, whatever limits its attempts have; 0: never."""


@dataclass(frozen=True)
class Sight:
    """How well the watchdog has been seeing."""

    since_us: int
    """Since when it has been reading up to the end of the log without a break. Silence before that is its own."""
    settled: bool
    """Whether that is long enough to judge time limits: reports that waited for the log to come back have arrived."""


@dataclass
class Suspicions:
    """What looked lost at the last judgements: attempt_id -> since when. The caller keeps it between calls."""

    since_us: dict[str, int] = field(default_factory=dict)


def judge(
    view: View,
    now_us: int,
    *,
    sight: Sight,
    limits: Limits,
    suspicions: Suspicions,
    last_activity: Callable[[Iterable[str]], Mapping[str, int]],
    consumed: Callable[[], Mapping[int, int]],
) -> list[Due]:
    """Everything that is due at ``now_us``, also what was due before and has not come about yet.

    ``last_activity`` gives the times of attempts' latest spans; asked only about attempts that seem silent.
    ``consumed`` gives the runners' committed offsets of the dispatch topic; asked only when an offer seems lost.
    """
    due: list[Due] = []
    silent: list[tuple[OpenRollout, int]] = []
    unclaimed: list[OpenRollout] = []
    suspected: dict[str, int] = {}
    for rollout in view.rollouts.values():
        latest = rollout.latest
        if latest["status"] in ("failed", "timeout", "unresponsive"):
            due += _backoff_over(rollout, now_us)
        elif latest["started_at_us"] is None:
            if now_us - rollout.sent_at_us > limits.claim_lease_us and sight.settled:
                unclaimed.append(rollout)
        elif sight.settled and _timed_out(view, rollout, now_us):
            due.append(_timeout(view, rollout))
        elif sight.settled and _seems_lost(view, rollout):
            since = suspected[latest["attempt_id"]] = suspicions.since_us.get(latest["attempt_id"], now_us)
            if now_us - since >= _LOST_GRACE_US:
                due.append(_unresponsive(rollout, now_us, "worker_lost", f"{latest['worker_id']} is another process"))
        elif (limit_us := _silence_limit(view, rollout, limits)) and now_us - _base(view, rollout, sight) > limit_us:
            silent.append((rollout, limit_us))
    suspicions.since_us = suspected
    due += _still_silent(view, silent, now_us, sight, last_activity)
    due += _offer_again(view, unclaimed, now_us, consumed)
    return due


def _timed_out(view: View, rollout: OpenRollout, now_us: int) -> bool:
    limit_us = length_us(rollout.state["config"]["timeout_seconds"])
    return limit_us is not None and now_us - view.started_us(rollout) > limit_us


def _timeout(view: View, rollout: OpenRollout) -> Due:
    latest = rollout.latest
    limit = rollout.state["config"]["timeout_seconds"]
    # dated when the limit was passed: an end that came before it was earlier, however late it is read
    at_us = view.started_us(rollout) + (length_us(limit) or 0) + 1
    name = event_id("watchdog", "timeout", latest["attempt_id"], latest["delivery"], latest["started_at_us"])
    return _report(rollout, "timeout", name, at_us, "attempt_timeout", f"longer than timeout_seconds={limit:g}")


def _seems_lost(view: View, rollout: OpenRollout) -> bool:
    """Whether the worker that claimed the attempt has come back without it, or has said goodbye."""
    latest = rollout.latest
    worker = view.workers.get(latest["worker_id"] or "")
    if worker is None or latest["attempt_id"] in worker.holds or not latest["worker_instance"]:
        return False
    return worker.is_stopped or worker.instance != latest["worker_instance"]


def _silence_limit(view: View, rollout: OpenRollout, limits: Limits) -> int:
    """The silence that this attempt may keep, in microseconds; 0: any."""
    own = length_us(rollout.state["config"]["unresponsive_seconds"]) or 0
    worker = view.workers.get(rollout.latest["worker_id"] or "")
    # only of a worker that has been heard of: others may send no heartbeats at all
    dead = max(limits.worker_lost_us, 3 * worker.interval_us) if worker is not None and limits.worker_lost_us else 0
    return min(own, dead) if own and dead else own or dead


def _base(view: View, rollout: OpenRollout, sight: Sight) -> int:
    heard = view.heard.get(rollout.latest["attempt_id"], 0)
    return max(rollout.seen_at_us, heard, sight.since_us)


def _still_silent(
    view: View,
    silent: list[tuple[OpenRollout, int]],
    now_us: int,
    sight: Sight,
    last_activity: Callable[[Iterable[str]], Mapping[str, int]],
) -> list[Due]:
    if not silent:
        return []
    spans = last_activity([rollout.latest["attempt_id"] for rollout, _ in silent])
    return [
        _unresponsive(
            rollout, now_us, "attempt_unresponsive", f"no span and no heartbeat for more than {limit_us / 1e6:g} s"
        )
        for rollout, limit_us in silent
        if now_us - max(_base(view, rollout, sight), spans.get(rollout.latest["attempt_id"], 0)) > limit_us
    ]


def _unresponsive(rollout: OpenRollout, now_us: int, reason_code: str, detail: str) -> Due:
    # the version tells one silence from the next, should the attempt come back in between
    name = event_id("watchdog", "unresponsive", rollout.latest["attempt_id"], rollout.state["version"])
    return _report(rollout, "unresponsive", name, now_us, reason_code, detail)


def _report(rollout: OpenRollout, status: str, name: str, at_us: int, reason_code: str, detail: str) -> Due:
    latest = rollout.latest
    return Due(
        "attempts",
        {
            "event_id": name,
            "occurred_at_us": at_us,
            "rollout_id": rollout.state["rollout_id"],
            "attempt_id": latest["attempt_id"],
            "attempt_number": latest["attempt_number"],
            "delivery": latest["delivery"],
            "status": status,
            "worker_id": latest["worker_id"],
            "worker_instance": latest["worker_instance"],
            "reason_code": reason_code,
            "detail": detail,
        },
    )


def _backoff_over(rollout: OpenRollout, now_us: int) -> list[Due]:
    state, latest = rollout.state, rollout.latest
    if state["status"] != "requeuing":
        return []
    # none is over at once: the limit may have been lifted, or never been a number, while its rollout waits for it
    backoff_us = length_us(state["config"]["backoff_seconds"]) or 0
    doublings = min(max(latest["attempt_number"] - 1, 0), _MOST_DOUBLINGS)
    ended_at_us = rollout.believed(latest["ended_at_us"] or state["occurred_at_us"])
    if now_us - ended_at_us < backoff_us << doublings:
        return []
    name = event_id("watchdog", "backoff", latest["attempt_id"], state["version"])
    return [_control(rollout, "requeue", name, now_us, "backoff", "{}")]


def _offer_again(
    view: View, unclaimed: list[OpenRollout], now_us: int, consumed: Callable[[], Mapping[int, int]]
) -> list[Due]:
    """Offers whose lease is over and that no runner will come to any more: either a runner has passed them by, or
    they never reached the topic. One that still waits in the queue is left there, however long."""
    if not unclaimed:
        return []
    offsets = consumed()
    due = []
    for rollout in unclaimed:
        latest = rollout.latest
        seen = view.offers.get(rollout.state["rollout_id"])
        if seen is not None and (seen.attempt_id, seen.delivery) == (latest["attempt_id"], latest["delivery"]):
            still_waits = offsets.get(seen.partition, 0) <= seen.offset
            if still_waits:
                continue
        name = event_id("watchdog", "claim_lease", latest["attempt_id"], latest["delivery"])
        payload = f'{{"delivery": {latest["delivery"]}}}'
        due.append(_control(rollout, "start_attempt", name, now_us, "claim_lease", payload))
    return due


def _control(rollout: OpenRollout, action: str, name: str, at_us: int, reason: str, payload: str) -> Due:
    return Due(
        "controls",
        {
            "event_id": name,
            "occurred_at_us": at_us,
            "rollout_id": rollout.state["rollout_id"],
            "action": action,
            "attempt_id": rollout.latest["attempt_id"],
            "reason": reason,
            "payload": payload,
        },
    )
