"""The sparse index of a segment: one entry for about every 16 KiB, by offset, position and time.

It lies beside the segment (`.index`) as far as the segment was on disk when it was written, with a checksum. It is
never needed: an index that is missing, torn or does not fit its file is made again from the data.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from agl_stream.infra.embedded.log.batch import BatchHeader
from agl_stream.infra.embedded.seal import seal, unseal

INDEX_INTERVAL_BYTES = 16 * 1024
_FORMAT = 2
"""1, of folders of format 1, had no checksum of this kind; it is made again."""


class Damage(NamedTuple):
    """A stretch of a segment in which no intact batch is."""

    first_offset: int
    next_offset: int
    position: int


@dataclass(slots=True, eq=False)
class SegmentFacts:
    """What is known of the first `size_bytes` of a segment, apart from the index itself."""

    size_bytes: int = 0
    next_offset: int = 0
    max_timestamp_ms: int = -1
    first_append_ms: int = -1
    """When the first batch came, by this machine's clock; -1 for an empty segment."""
    cleaned_ms: int = -1
    """When compaction first kept only the last of each key here; -1 if it did not yet."""
    removable: int = 0
    """Tombstones and transaction markers that compaction left until delete.retention.ms is over."""
    damaged: list[Damage] = field(default_factory=list)


class SparseIndex:
    """Entries in the order of the file."""

    __slots__ = ("newest", "offsets", "peaks", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.newest = array("q")
        """Largest timestamp from this entry to the next."""
        self.peaks = array("q")
        """Largest timestamp up to the next entry: never falls, so that a time can be looked up by bisection."""

    def take(self, header: BatchHeader, position: int, *, own_entry: bool = False) -> None:
        """Account for the batch at `position`, which is behind all others; with an entry of its own if it must."""
        newest = header.max_timestamp
        if not self.positions or own_entry or position - self.positions[-1] >= INDEX_INTERVAL_BYTES:
            self.offsets.append(header.base_offset)
            self.positions.append(position)
            self.newest.append(newest)
            self.peaks.append(max(newest, self.peaks[-1]) if self.peaks else newest)
            return
        if newest > self.newest[-1]:
            self.newest[-1] = newest
            if newest > self.peaks[-1]:
                self.peaks[-1] = newest

    def entry_of_offset(self, offset: int) -> int:
        """Last entry at or before `offset`; 0 if there is none, also in an empty index."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def entries_reaching(self, timestamp_ms: int, start_offset: int) -> range | list[int]:
        """Entries that may hold a record at or after both, in order; the first one does unless it is the start's."""
        by_offset = self.entry_of_offset(start_offset)
        by_time = bisect_left(self.peaks, timestamp_ms)
        if by_time >= by_offset:
            return range(by_time, len(self.positions))
        return [entry for entry in range(by_offset, len(self.positions)) if self.newest[entry] >= timestamp_ms]

    def encode(self, facts: SegmentFacts) -> bytes:
        """What the `.index` file holds."""
        head = json.dumps({"format": _FORMAT, "entries": len(self.offsets), **asdict(facts)}).encode()
        return seal(head + b"\n" + self.offsets.tobytes() + self.positions.tobytes() + self.newest.tobytes())

    @classmethod
    def decode(cls, data: bytes) -> tuple[SparseIndex, SegmentFacts] | None:
        """What encode() wrote; None when it is torn, damaged or of another format."""
        payload = unseal(data)
        if payload is None:
            return None
        first_line, _, columns = payload.partition(b"\n")
        try:
            head = json.loads(first_line)
            if head.pop("format") != _FORMAT:
                return None
        except (ValueError, KeyError, AttributeError, TypeError):
            return None  # the content of another file, which a power cut can leave under this name
        width = head.pop("entries") * 8
        index = cls()
        for number, column in enumerate((index.offsets, index.positions, index.newest)):
            column.frombytes(columns[number * width : (number + 1) * width])
        for newest in index.newest:
            index.peaks.append(max(newest, index.peaks[-1]) if index.peaks else newest)
        facts = SegmentFacts(**head)
        facts.damaged = [Damage(*damage) for damage in facts.damaged]
        return index, facts
