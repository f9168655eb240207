"""What a batch handler gets: one decoded record of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agl_stream.schemas.events import Event


class Partition(NamedTuple):
    """A partition of one of our topics; ``topic`` is the name without namespace."""

    topic: str
    number: int


@dataclass(slots=True)
class Record:
    """One record, decoded. ``topic`` is the name without namespace; ``event`` is a plain dict keyed as in the .avsc.

    ``event["event_id"]`` and ``event["occurred_at_us"]`` are never empty: what a foreign writer left out is
    derived from topic, partition, offset and the record's timestamp, so that every reader derives the same.
    ``body_at``: where in ``value`` the event's Avro body begins, -1 where ``value`` is of another schema than the
    current one or ``event`` says more than it.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    event_type: str
    event: Event
    body_at: int = -1
