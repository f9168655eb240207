"""What the watchdog knows of open attempts and of workers. Pure; times are given, never asked for.

Silence is measured by when things were *seen here*, not by their writers' clocks: clocks that disagree cannot kill
an attempt, and after a restart everything counts as just seen. An attempt's own length is measured from its start as
its worker dated it, where that can be true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agl_stream.schemas.events import Event
from agl_stream.streams.lifecycle.limits import LONGEST_SECONDS

_CLOCKS_AGREE_US = 5_000_000
"""Clocks that differ by less are taken for equal: it may have been the heartbeat's way that took so long."""

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
_FORGET_US = 600_000_000
_LONGEST_INTERVAL_US = 86_400_000_000


@dataclass(slots=True)
class OpenRollout:
    """A rollout that has not ended, by its latest state."""

    state: Event
    seen_at_us: int
    """When this state's attempt, delivery and status were first seen here."""
    sent_at_us: int
    """When the state was written, by its record's timestamp."""

    @property
    def latest(self) -> dict[str, Any]:
        return self.state["attempts"][-1]

    def believed(self, at_us: int) -> int:
        """A worker's date of what it did with the latest attempt, where that can be true; else when it was told."""
        return at_us if self.latest["dispatched_at_us"] <= at_us <= self.sent_at_us else self.sent_at_us


@dataclass(slots=True)
class SeenWorker:
    """The latest heartbeat of a worker_id."""

    instance: str
    interval_us: int
    """Its promise; 0: none that can be kept to. At most a day, so that nobody is exempt from being given up."""
    is_stopped: bool
    holds: frozenset[str]
    seen_at_us: int
    ahead_us: int
    """How far its clock seemed ahead when this was seen; below zero: behind, or the heartbeat was read late."""


class SeenOffer(NamedTuple):
    """An AttemptDispatched and its place."""

    partition: int
    offset: int
    attempt_id: str
    attempt_number: int
    delivery: int
    seen_at_us: int


@dataclass
class View:
    """Fed in the order of the log."""

    rollouts: dict[str, OpenRollout] = field(default_factory=dict)
    workers: dict[str, SeenWorker] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    """attempt_id -> when a heartbeat that lists it was last seen."""
    offers: dict[str, SeenOffer] = field(default_factory=dict)
    """rollout_id -> its latest offer on the dispatch topic."""

    def rollout_changed(self, event: Event, *, seen_at_us: int, sent_at_us: int) -> None:
        """A RolloutStateChanged; older versions than the one known are ignored."""
        rollout_id = event["rollout_id"]
        known = self.rollouts.get(rollout_id)
        if known is not None and event["version"] <= known.state["version"]:
            return
        if event["status"] in TERMINAL or not event["attempts"]:
            self.rollouts.pop(rollout_id, None)
            return
        if known is not None and _moment(known.state) == _moment(event):
            seen_at_us, sent_at_us = known.seen_at_us, known.sent_at_us
        # the task itself is of no interest here and may be large
        slim = {**event, "input": "", "input_ref": None, "metadata": "{}"}
        self.rollouts[rollout_id] = OpenRollout(slim, seen_at_us, sent_at_us)

    def heartbeat(self, event: Event, *, seen_at_us: int) -> None:
        """A WorkerHeartbeat of a runner."""
        if event["role"] not in ("runner", "unknown"):
            return
        held = frozenset(entry["attempt_id"] for entry in event["attempts"])
        for attempt_id in held:
            self.heard[attempt_id] = seen_at_us
        self.workers[event["worker_id"]] = SeenWorker(
            instance=event["worker_instance"],
            interval_us=min(length_us(event["interval_seconds"]) or 0, _LONGEST_INTERVAL_US),
            is_stopped=event["status"] == "stopped",
            holds=held,
            seen_at_us=seen_at_us,
            ahead_us=event["occurred_at_us"] - seen_at_us,
        )

    def offered(self, event: Event, *, partition: int, offset: int, seen_at_us: int) -> None:
        """An AttemptDispatched; one older than the one known is ignored."""
        offer = SeenOffer(
            partition, offset, event["attempt_id"], event["attempt_number"], event["delivery"], seen_at_us
        )
        known = self.offers.get(event["rollout_id"])
        if known is None or (offer.attempt_number, offer.delivery) >= (known.attempt_number, known.delivery):
            self.offers[event["rollout_id"]] = offer

    def started_us(self, rollout: OpenRollout) -> int:
        """When the latest attempt started, by the clocks of the lifecycle and the watchdog. The worker's date is
        corrected where its heartbeats show that its clock is wrong, and is not believed where it lies before the
        offer or after the lifecycle heard of the start: then that counts."""
        started_us: int = rollout.latest["started_at_us"]
        worker = self.workers.get(rollout.latest["worker_id"] or "")
        if worker is not None and abs(worker.ahead_us) > _CLOCKS_AGREE_US:
            started_us -= worker.ahead_us
        return rollout.believed(started_us)

    def prune(self, now_us: int) -> None:
        """Forget heartbeats and offers of long ago that belong to nothing open. An offer may be read before the
        state of its rollout, so a fresh one is kept."""
        open_attempts = {rollout.latest["attempt_id"] for rollout in self.rollouts.values()}
        for attempt_id in [
            key for key, at in self.heard.items() if now_us - at > _FORGET_US and key not in open_attempts
        ]:
            del self.heard[attempt_id]
        for rollout_id in [
            key
            for key, offer in self.offers.items()
            if now_us - offer.seen_at_us > _FORGET_US and key not in self.rollouts
        ]:
            del self.offers[rollout_id]


def length_us(seconds: float | None) -> int | None:
    """Microseconds, from 1 up to those of LONGEST_SECONDS; None for what is no length of time.

    The topics are open to anybody, and a double may be negative, infinite or no number at all.
    """
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return None
    return max(int(min(seconds, LONGEST_SECONDS) * 1e6), 1)


def _moment(event: Event) -> tuple[Any, ...]:
    latest = event["attempts"][-1]
    return event["status"], latest["attempt_id"], latest["delivery"], latest["status"], latest["worker_instance"]
