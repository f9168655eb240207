"""The events a runner writes, as plain dicts. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """``worker_id`` stays the same over restarts; ``instance`` names one process."""

    worker_id: str
    instance: str
    started_at_us: int


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt this runner has won: the AttemptDispatched event, where it was, and when it was claimed."""

    dispatch: Event
    partition: int
    offset: int
    claimed_at_us: int
    claimed_monotonic: float = field(default_factory=time.monotonic)
    """The same moment on a clock that nobody sets, from which the time limit runs."""

    @property
    def rollout_id(self) -> str:
        return self.dispatch["rollout_id"]

    @property
    def attempt_id(self) -> str:
        return self.dispatch["attempt_id"]

    @property
    def delivery(self) -> int:
        return self.dispatch["delivery"]


def attempt_event(claim: Claim, worker: WorkerIdentity, status: str, at_us: int, **fields: Any) -> Event:
    """AttemptStatusChanged. A second emission of the same fact by the same process has the same event_id."""
    dispatch = claim.dispatch
    return {
        "event_id": event_id("runner", dispatch["attempt_id"], dispatch["delivery"], worker.instance, status),
        "occurred_at_us": at_us,
        "rollout_id": dispatch["rollout_id"],
        "attempt_id": dispatch["attempt_id"],
        "attempt_number": dispatch["attempt_number"],
        "delivery": dispatch["delivery"],
        "status": status,
        "worker_id": worker.worker_id,
        "worker_instance": worker.instance,
        **fields,
    }


def heartbeat_event(
    worker: WorkerIdentity,
    *,
    status: str,
    interval_seconds: float,
    slots_total: int,
    slots_free: int,
    partitions: list[int],
    held: list[Claim],
    stats: str,
) -> Event:
    """WorkerHeartbeat; ``held`` are the attempts for which it counts as a sign of life."""
    return {
        "worker_id": worker.worker_id,
        "worker_instance": worker.instance,
        "role": "runner",
        "status": status,
        "started_at_us": worker.started_at_us,
        "interval_seconds": interval_seconds,
        "slots_total": slots_total,
        "slots_free": slots_free,
        "partitions": partitions,
        "attempts": [{"rollout_id": claim.rollout_id, "attempt_id": claim.attempt_id} for claim in held],
        "stats": stats,
    }
