"""What the fold asks the world to do: put an event on a topic."""

from __future__ import annotations

from typing import NamedTuple

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.lifecycle.limits import LATEST_US, is_time
from agl_stream.streams.lifecycle.state import HeldEvent

REJECTED_BY = "lifecycle"
PAYLOAD_LIMIT_BYTES = 65_536
DETAIL_LIMIT = 1_000


class Source(NamedTuple):
    """Where a record stands on the log; ``topic`` without namespace. ``value`` may be empty in tests and replays."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = None

    @property
    def at_us(self) -> int:
        """The record's own time. Its writer may have set it to anything; here it is one that an event may have."""
        return min(max(self.timestamp_ms * 1000, 1), LATEST_US)

    def time_of(self, event: Event) -> int:
        """When the event of this record occurred; the record's own time where it says none."""
        at_us = event["occurred_at_us"]
        return at_us if is_time(at_us) else self.at_us


class Effect(NamedTuple):
    """One event for one topic (without namespace); ``producer`` is for whoever sends it to fill in.

    The event_id is a function of what the effect says, so an effect that is carried out twice can be told apart
    from two effects. ``partition`` None: by key.
    """

    topic: str
    event: Event
    partition: int | None = None


def rejected(
    source: Source,
    reason_code: str,
    detail: str,
    *,
    at_us: int,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
) -> Effect:
    """A RecordRejected for the record at ``source``; the same record and reason give the same event."""
    payload = source.value
    return Effect(
        "rejects",
        {
            "event_id": event_id("reject", source.topic, source.partition, source.offset, reason_code),
            "occurred_at_us": at_us,
            "source_topic": source.topic,
            "source_partition": source.partition,
            "source_offset": source.offset,
            "source_key": source.key,
            "reason_code": reason_code,
            "detail": detail[:DETAIL_LIMIT],
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "payload": payload[:PAYLOAD_LIMIT_BYTES] if payload else payload,
            "payload_length": len(payload) if payload else 0,
            "rejected_by": REJECTED_BY,
        },
    )


def rejected_held(held: HeldEvent, reason_code: str, detail: str) -> Effect:
    """A RecordRejected for an event that was held and never found what it speaks of."""
    event = held["event"]
    return rejected(
        Source(held["topic"], held["partition"], held["offset"]),
        reason_code,
        detail,
        at_us=event["occurred_at_us"],
        rollout_id=event["rollout_id"],
        attempt_id=event.get("attempt_id"),
    )
