"""Which offsets may be committed when batches finish out of order.

A partition's *watermark* is the next offset after the highest contiguous finished one: everything below it is
durable downstream. Committing anything higher would lose what is still being worked on if the process died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from agl_stream.consumers.record import Partition


class Claim:
    """A run of a partition's records that is being worked on; ends before ``next_offset``."""

    __slots__ = ("finished", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.finished = False


class OffsetTracker:
    """Claims in the order they were taken, and the watermark that follows from those finished.

    Not thread-safe: the consumer loop's thread owns it. Offsets may have gaps (compaction and transaction markers
    leave some); only the order matters.
    """

    def __init__(self) -> None:
        self._claims: dict[Partition, deque[Claim]] = {}
        self._watermarks: dict[Partition, int] = {}

    def take(self, partition: Partition, next_offset: int) -> Claim:
        """Records of ``partition`` up to and without ``next_offset`` are being worked on."""
        claim = Claim(next_offset)
        self._claims.setdefault(partition, deque()).append(claim)
        return claim

    def finish(self, claims: Iterable[Claim]) -> None:
        """These claims' records are durable. A claim whose partition was dropped since changes nothing."""
        for claim in claims:
            claim.finished = True

    def watermarks(self) -> dict[Partition, int]:
        """Each partition's watermark, where anything was finished."""
        for partition, claims in self._claims.items():
            while claims and claims[0].finished:
                self._watermarks[partition] = claims.popleft().next_offset
        return dict(self._watermarks)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that belong to somebody else now; whatever is unfinished will be redone there."""
        for partition in partitions:
            self._claims.pop(partition, None)
            self._watermarks.pop(partition, None)
