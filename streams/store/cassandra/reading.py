"""Cells back to events, as every state store answers them. Pure.

Avro holds numbers that are not finite and JSON does not; the embedded store keeps most events as JSON. So that both
say the same, such numbers are null here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from agl_stream.schemas.events import Event
from agl_stream.streams.store.cassandra.cells import content_of, event_of


def rollout(stored: bytes) -> Event:
    event = event_of("RolloutStateChanged", content_of(stored))
    _nulled(event["config"], math.isfinite, "timeout_seconds", "unresponsive_seconds", "backoff_seconds")
    for attempt in event["attempts"]:
        _nulled(attempt, math.isfinite, "reward")
    return event


def triplets(stored: bytes) -> Event:
    event = event_of("TripletsJoined", content_of(stored))
    _nulled(event, math.isfinite, "reward")
    for call in event["triplets"]:
        _nulled(call, _is_number, "reward")
    return event


def resources(stored: bytes) -> Event:
    return event_of("ResourcesPublished", content_of(stored))


def worker(stored: bytes) -> Event:
    return _nulled(event_of("WorkerHeartbeat", content_of(stored)), math.isfinite, "interval_seconds")


def batch(stored: bytes) -> Event:
    event = event_of("BatchTrained", content_of(stored))
    for settled in event["rollouts"]:
        _nulled(settled, math.isfinite, "reward")
    return event


def reject(stored: bytes) -> Event:
    return event_of("RecordRejected", content_of(stored))


def span(source_partition: int, source_offset: int, body: bytes) -> Event:
    event = _nulled(event_of("SpanRecorded", body), _is_number, "reward")
    event["source_partition"] = source_partition
    event["source_offset"] = source_offset
    return event


def _is_number(value: float) -> bool:
    return not math.isnan(value)


def _nulled(record: dict[str, Any], allowed: Callable[[float], bool], *fields: str) -> dict[str, Any]:
    for field in fields:
        value = record[field]
        if value is not None and not allowed(value):
            record[field] = None
    return record
