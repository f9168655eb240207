"""The part of compaction that runs in a thread: closed segments are read, smaller ones are written beside them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log.batch import (
    CRC_FROM,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    build_batch,
    iter_records,
    read_header,
)
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.log.offset_map import OffsetMap
from agl_stream.infra.embedded.log.pace import Pace
from agl_stream.infra.embedded.log.producer_state import AbortedTransaction
from agl_stream.infra.embedded.log.recovery import CLEANED
from agl_stream.infra.embedded.log.segment import Segment


@dataclass(frozen=True, slots=True)
class Source:
    """A closed segment, as it was when the pass was planned. It may be deleted meanwhile."""

    segment: Segment
    path: Path
    base_offset: int
    next_offset: int
    size_bytes: int
    first_append_ms: int
    cleaned_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass works on; taken in the event loop."""

    sources: list[Source]
    aborted: dict[int, list[AbortedTransaction]]
    start_offset: int
    clean_below: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    max_keys: int


@dataclass(slots=True)
class Output:
    """A written segment, flushed and complete, that replaces a run of sources."""

    segment: Segment
    replaced: list[Source] = field(default_factory=list)


class Rewriting:
    """One pass. `clean_below` afterwards: up to there no key occurs twice."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._latest = OffsetMap()
        self._undecided: set[int] = set()
        self._pace = Pace()
        self.clean_below = plan.clean_below
        self.outputs: list[Output] = []

    def run(self) -> None:
        """Blocks. Raises CorruptBatch or OSError; the log has not changed then. Call discard() in that case."""
        COUNTERS.compaction_passes += 1
        self._fill_map()
        for source in self._plan.sources:
            if source.base_offset < self.clean_below:
                self._clean(source)
        for output in self.outputs:
            output.segment.flush()

    def discard(self) -> None:
        """Remove the outputs that are not in use."""
        for output in self.outputs:
            output.segment.retire()
            disk.remove(output.segment.path)

    def _fill_map(self) -> None:
        """Remember the last offset of each key of the dirty part, as far as max_keys go."""
        plan, latest = self._plan, self._latest
        for source in plan.sources:
            if source.next_offset <= plan.clean_below:
                continue
            for header, batch in self._batches(source):
                if header.last_offset < plan.clean_below or header.is_control or self._is_aborted(header):
                    continue
                if len(latest) >= plan.max_keys:
                    self.clean_below = header.base_offset
                    return
                for record in iter_records(batch, header):
                    if record.key is not None:
                        latest.put(record.key, record.offset)
            self.clean_below = source.next_offset

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch, checked; a damaged one must not be given a fresh checksum."""
        if not source.size_bytes:
            return
        COUNTERS.compacted_bytes_read += source.size_bytes
        with (
            source.path.open("rb") as file,
            mmap.mmap(file.fileno(), source.size_bytes, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
        ):
            at = 0
            while at < source.size_bytes:
                self._pace()
                header = read_header(view, at)
                if header.size_bytes < HEADER_BYTES or at + header.size_bytes > source.size_bytes:
                    raise CorruptBatch(f"{source.path}: no batch at position {at}")
                batch = bytes(view[at : at + header.size_bytes])
                if crc32c(memoryview(batch)[CRC_FROM:]) != header.crc:
                    raise CorruptBatch(f"{source.path}: CRC mismatch at position {at}")
                yield header, batch
                at += header.size_bytes

    def _clean(self, source: Source) -> None:
        """Write what is to stay of a source.

        A marker stays while records of its transaction are there, which would be undecided without it. After that it
        waits as tombstones do, for readers that have seen such records and not yet the marker.
        """
        plan = self._plan
        whole = source.next_offset <= self.clean_below
        cleaned_ms = source.cleaned_ms if source.cleaned_ms >= 0 or not whole else plan.now_ms
        output = self._output_for(source, cleaned_ms, whole)
        segment = output.segment
        deletes_due = 0 <= source.cleaned_ms <= plan.now_ms - plan.delete_retention_ms
        for header, batch in self._batches(source):
            if header.base_offset >= self.clean_below:
                segment.append(b"", batch, header, plan.now_ms)
            elif header.is_control:
                decides_something = header.producer_id in self._undecided
                self._undecided.discard(header.producer_id)
                if decides_something or not deletes_due:
                    segment.append(b"", batch, header, plan.now_ms)
                    segment.removable += not decides_something
            elif not self._is_aborted(header) and header.last_offset >= plan.start_offset:
                self._clean_batch(segment, header, batch, deletes_due)
        segment.next_offset = source.next_offset
        segment.cleaned_ms = max(segment.cleaned_ms, cleaned_ms)

    def _output_for(self, source: Source, cleaned_ms: int, whole: bool) -> Output:
        """The output under way, if the source still fits in and has tombstones that wait equally long."""
        plan = self._plan
        if self.outputs and whole:
            output = self.outputs[-1]
            segment = output.segment
            same_wait = not segment.removable or segment.cleaned_ms == cleaned_ms
            if segment.size_bytes + source.size_bytes <= plan.segment_bytes and same_wait:
                output.replaced.append(source)
                return output
        path = source.path.with_suffix(CLEANED)
        disk.remove(path)
        segment = Segment.create_at(path, source.base_offset)
        segment.first_append_ms = source.first_append_ms
        self.outputs.append(Output(segment, [source]))
        return self.outputs[-1]

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            aborted.first_offset <= header.base_offset <= aborted.last_offset
            for aborted in self._plan.aborted.get(header.producer_id, ())
        )

    def _clean_batch(self, segment: Segment, header: BatchHeader, batch: bytes, deletes_due: bool) -> None:
        records = list(iter_records(batch, header))
        kept = []
        for record in records:
            if record.key is not None and record.offset < self.clean_below:
                if self._latest.latest(record.key) > record.offset or (not record.has_value and deletes_due):
                    continue
                segment.removable += not record.has_value
            kept.append(record)
        if not kept:
            return
        if header.is_transactional:
            self._undecided.add(header.producer_id)
        if len(kept) < len(records):
            header = header._replace(max_timestamp=max(record.timestamp_ms for record in kept))
            data = build_batch([record.encoded for record in kept], header)
            segment.append(b"", data, read_header(data), self._plan.now_ms)
        else:
            segment.append(b"", batch, header, self._plan.now_ms)
