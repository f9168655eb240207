"""Records that cannot be processed: written to the rejects topic with a reason, and bounded.

One poison record must not stop a partition; a bad deploy must not drain a topic into the rejects. So a consumer
goes on past a reject and stops when a partition shows too many in a row, or too many among its latest records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agl_stream.consumers.record import Partition
from agl_stream.errors import TooManyRejects
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id

PAYLOAD_LIMIT_BYTES = 65_536
DETAIL_LIMIT = 1_000


@dataclass(frozen=True)
class RejectLimits:
    """When to stop. ``consecutive``: rejects in a row on one partition. ``ratio``: share of rejects among each
    ``window`` records of one partition."""

    consecutive: int = 1000
    ratio: float = 0.5
    window: int = 10_000


class Source(Protocol):
    """Where a reject comes from: a Record, or anything with its position and bytes."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes: ...


def reject_event(
    source: Source,
    reason_code: str,
    detail: str,
    *,
    rejected_by: str,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
) -> Event:
    """A RecordRejected for ``source``. Its id follows from position and reason: two consumers that reject the same
    record for the same reason, or one that does so twice, write the same event."""
    payload = source.value
    return {
        "event_id": event_id("reject", source.topic, source.partition, source.offset, reason_code),
        "source_topic": source.topic,
        "source_partition": source.partition,
        "source_offset": source.offset,
        "source_key": source.key,
        "reason_code": reason_code,
        "detail": detail[:DETAIL_LIMIT],
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "payload": payload[:PAYLOAD_LIMIT_BYTES],
        "payload_length": len(payload),
        "rejected_by": rejected_by,
    }


@dataclass(slots=True)
class _Counts:
    in_a_row: int = 0
    seen: int = 0
    rejected: int = 0
    last: str = ""


class Rejects:
    """Writes rejects and counts them per partition. Not thread-safe."""

    def __init__(self, producer: EventProducer, *, rejected_by: str, limits: RejectLimits | None = None) -> None:
        self._producer = producer
        self._rejected_by = rejected_by
        self._limits = limits or RejectLimits()
        self._counts: dict[Partition, _Counts] = {}
        self._unflushed = False

    def reject(
        self,
        source: Source,
        reason_code: str,
        detail: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> None:
        """Write one reject (durable after ``flush``). Raises TooManyRejects, naming topic, partition, offset and
        reason, when a limit is reached."""
        event = reject_event(
            source,
            reason_code,
            detail,
            rejected_by=self._rejected_by,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
        )
        self._producer.send("rejects", event)
        self._unflushed = True
        partition = Partition(source.topic, source.partition)
        counts = self._counts.setdefault(partition, _Counts())
        counts.in_a_row += 1
        counts.rejected += 1
        counts.seen += 1
        counts.last = f"offset {source.offset} as {reason_code} ({detail[:200]})"
        if counts.in_a_row >= self._limits.consecutive:
            raise self._too_many(partition, counts, f"{counts.in_a_row} records in a row")
        self._check_window(partition, counts)

    def accept(self, partition: Partition, records: int = 1) -> None:
        """These records of the partition were fine. Costs next to nothing on a partition without rejects."""
        if not records or (counts := self._counts.get(partition)) is None:
            return
        counts.in_a_row = 0
        counts.seen += records
        self._check_window(partition, counts)

    def flush(self) -> None:
        """Return once all rejects written are acknowledged; raises DeliveryFailed or TimeoutError."""
        if self._unflushed:
            self._producer.flush()
            self._unflushed = False

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the counts of partitions that were revoked."""
        for partition in partitions:
            self._counts.pop(partition, None)

    def _check_window(self, partition: Partition, counts: _Counts) -> None:
        if counts.seen < self._limits.window:
            return
        if counts.rejected > self._limits.ratio * counts.seen:
            raise self._too_many(partition, counts, f"{counts.rejected} of {counts.seen} records")
        counts.seen = counts.rejected = 0

    def _too_many(self, partition: Partition, counts: _Counts, found: str) -> TooManyRejects:
        return TooManyRejects(
            f"{self._rejected_by} stopped: {found} of {partition.topic} partition {partition.number} were rejected, "
            f"the last at {counts.last}. Correct the writer, look at `agl-stream tail rejects`, or raise "
            f"AGL_STREAM_REJECT_LIMIT_CONSECUTIVE={self._limits.consecutive}"
        )
