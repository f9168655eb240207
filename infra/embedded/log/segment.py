"""One segment of a partition's log: a file of record batches, with a sparse index.

The file holds Kafka's v2 batches one after another and nothing else. A read goes to the nearest index entry and walks
batch headers from there, so no look-up reads more than a few of them. What the saved index covers was checked and
flushed before; a start reads and checks only what lies behind.
"""

from __future__ import annotations

import logging
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.growing_file import GrowingFile
from agl_stream.infra.embedded.log.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    POSITION,
    BatchHeader,
    CorruptBatch,
    iter_records,
    read_header,
)
from agl_stream.infra.embedded.log.index import INDEX_INTERVAL_BYTES, Damage, SegmentFacts, SparseIndex
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.log.scan import find_intact, intact_batches, set_aside

logger = logging.getLogger(__name__)


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


class Segment(SegmentFacts):
    """Batches from `base_offset` on. Changed in the event loop only; flush() and save_index() may run in a thread."""

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(next_offset=base_offset)
        self.path = path
        self.base_offset = base_offset
        self.indexed_bytes = 0
        """What the saved index covers."""
        self.checked_ms = 0
        """When every batch was last found intact, or damaged, in this process."""
        self.deleted = False
        self._index = SparseIndex()
        self._file = GrowingFile(path)

    @classmethod
    def create(cls, folder: Path, base_offset: int) -> Segment:
        """A new, empty segment."""
        return cls.create_at(folder / segment_name(base_offset), base_offset)

    @classmethod
    def create_at(cls, path: Path, base_offset: int) -> Segment:
        """A new, empty segment under another name than its own, for the time being."""
        segment = cls(path, base_offset)
        segment._file.create()
        return segment

    @property
    def fd(self) -> int:
        """The open file; opened on first use and kept until close()."""
        return self._file.fd

    @property
    def flushed_bytes(self) -> int:
        """What a power cut would leave."""
        return self._file.flushed_bytes

    @property
    def newest_ms(self) -> int:
        """Largest timestamp of a record or, when producers gave none, when the first batch came."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.first_append_ms

    def close(self) -> None:
        self._file.close()

    def retire(self) -> None:
        """Close for good; the files are somebody else's now."""
        self.deleted = True
        self.close()

    def delete(self) -> None:
        self.retire()
        disk.remove(self.path)
        disk.remove(self.path.with_suffix(".index"))

    # Writing

    def append(self, prefix: bytes, batch: bytes | memoryview, header: BatchHeader, now_ms: int) -> None:
        """Write `batch` with its first bytes replaced by `prefix`; `header` describes the result.

        Raises OSError when the file system refuses; the segment is then as it was before.
        """
        self._file.append([prefix, memoryview(batch)[len(prefix) :]], self.size_bytes)
        if self.first_append_ms < 0:
            self.first_append_ms = now_ms
        self._take(header)

    def _take(self, header: BatchHeader, *, own_entry: bool = False) -> None:
        """Account for the batch at the end of the file."""
        self._index.take(header, self.size_bytes, own_entry=own_entry)
        if header.max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp
        self.size_bytes += header.size_bytes
        self.next_offset = header.last_offset + 1

    def flush(self) -> None:
        """Force to disk what was appended before the call. Blocks; safe in a thread. Raises OSError."""
        with self._file.lock:
            size_bytes = self.size_bytes
            if self.deleted or (size_bytes == self.flushed_bytes and (self._file.named or not size_bytes)):
                return
            self._file.force(size_bytes)

    # Reading

    def locate(self, offset: int, max_bytes: int, end_offset: int) -> tuple[int, int]:
        """(position, size) of whole batches from the one that holds `offset` (or the next one) up to `end_offset`.

        At most `max_bytes`, but never less than one batch if there is one below `end_offset`; size 0 when there is
        none. Ends where the index has an entry when it can, so that a reader who goes on from there needs no walk.
        Raises CorruptBatch when the file is not what was written to it: damage is never skipped in silence.
        """
        start = self._position_of(offset)
        limit = self.size_bytes if end_offset >= self.next_offset else self._position_of(end_offset)
        if self.damaged:
            limit = min(limit, self._intact_up_to(offset))
        if limit - start <= max_bytes:
            return start, max(limit - start, 0)
        entry = bisect_right(self._index.positions, start + max_bytes) - 1
        if entry >= 0 and self._index.positions[entry] > start:
            return start, min(self._index.positions[entry], limit) - start
        at = start
        for size_bytes, _ in self._walk(start, limit):
            if at > start and at + size_bytes - start > max_bytes:
                break
            at += size_bytes
        return start, at - start

    def _intact_up_to(self, offset: int) -> int:
        """Position of the first damage behind `offset`; raises CorruptBatch for an offset that is lost in one."""
        for damage in self.damaged:
            if offset < damage.first_offset:
                return damage.position
            if offset < damage.next_offset:
                raise CorruptBatch(
                    f"{self.path}: damaged at position {damage.position}, offsets {damage.first_offset} to "
                    f"{damage.next_offset - 1} cannot be read; go on from {damage.next_offset}"
                )
        return self.size_bytes

    def _position_of(self, offset: int) -> int:
        """Where the batch begins that holds `offset`, or the first one behind it; else the end of the file."""
        entry = bisect_right(self._index.offsets, offset) - 1
        at = self._index.positions[entry] if entry >= 0 else 0
        if entry >= 0 and self._index.offsets[entry] == offset:
            return at
        for size_bytes, last_offset in self._walk(at, self.size_bytes):
            if last_offset >= offset:
                break
            at += size_bytes
        return at

    def _walk(self, position: int, stop: int) -> Iterator[tuple[int, int]]:
        """(size, last offset) of the batches in [position, stop), by their headers alone; raises CorruptBatch."""
        while position < stop:
            chunk = os.pread(self.fd, INDEX_INTERVAL_BYTES, position)
            at = 0
            while at + HEADER_BYTES <= len(chunk) and position + at < stop:
                base_offset, length, last_delta = POSITION.unpack_from(chunk, at)
                size_bytes = length + LENGTH_PREFIX_BYTES
                if size_bytes < HEADER_BYTES or position + at + size_bytes > self.size_bytes:
                    raise CorruptBatch(f"{self.path}: no batch at position {position + at}")
                yield size_bytes, base_offset + last_delta
                at += size_bytes
            if at == 0:
                raise CorruptBatch(f"{self.path}: no batch at position {position}")
            position += at

    def batches(self, position: int, stop: int) -> Iterator[tuple[BatchHeader, int]]:
        """(header, position) of the batches that begin in [position, stop); raises CorruptBatch."""
        at = position
        while at < min(stop, self.size_bytes):
            header = read_header(os.pread(self.fd, HEADER_BYTES, at))
            if header.size_bytes < HEADER_BYTES:
                raise CorruptBatch(f"{self.path}: no batch at position {at}")
            yield header, at
            at += header.size_bytes

    def batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, int]]:
        """(header, position) of the intact batches that begin at `offset` or later."""
        position = 0
        for damage in [*self.damaged, Damage(self.next_offset, self.next_offset, self.size_bytes)]:
            for header, at in self.batches(position, damage.position):
                if header.base_offset >= offset:
                    yield header, at
            position = self._position_of(damage.next_offset)

    def read_batch(self, header: BatchHeader, position: int) -> bytes:
        return os.pread(self.fd, header.size_bytes, position)

    def batches_reaching(self, timestamp_ms: int, start_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Batches at or after `start_offset` whose maximum timestamp is at least `timestamp_ms`, in order."""
        for entry in self._index.entries_reaching(timestamp_ms, start_offset):
            for header, position in self._batches_of(entry):
                if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
                    yield header, self.read_batch(header, position)

    def _batches_of(self, entry: int) -> Iterator[tuple[BatchHeader, int]]:
        """(header, position) of what the index has an entry for, as far as it is known to be intact."""
        start, stop, *_ = *self._index.positions[entry : entry + 2], self.size_bytes, self.size_bytes
        return self.batches(start, min((d.position for d in self.damaged if start <= d.position < stop), default=stop))

    def newest_from(self, offset: int) -> int:
        """Largest timestamp of the records from `offset` on, -1 when there are none. Raises CorruptBatch."""
        if offset <= self.base_offset:
            return self.max_timestamp_ms
        entry = self._index.entry_of_offset(offset)
        newest = max(self._index.newest[entry + 1 :], default=-1)
        for header, position in self._batches_of(entry):
            if header.base_offset >= offset:
                newest = max(newest, header.max_timestamp)
            elif header.last_offset >= offset:
                records = iter_records(self.read_batch(header, position), header)
                newest = max(newest, *(record.timestamp_ms for record in records if record.offset >= offset), -1)
        return newest

    # Start

    def recover(self, following_offset: int | None, *, sparse: bool) -> None:
        """Take over the file: what the saved index covers by the index, the rest by reading and checking it.

        `following_offset` is where the next segment begins, None for the last one: only that may have a torn end,
        which is cut. Damage in a closed segment is kept, told and remembered. `sparse` says that offsets may be
        missing because the segment was compacted.
        """
        file_bytes = os.fstat(self.fd).st_size
        if not self._load_index(file_bytes) and file_bytes and following_offset is not None:
            COUNTERS.rebuilt_indexes += 1
        self._file.flushed_bytes = self.indexed_bytes = self.size_bytes
        self._take_rest(file_bytes, following_offset, sparse or self.cleaned_ms >= 0)
        if file_bytes > self.size_bytes:
            cut = file_bytes - self.size_bytes
            disk.truncate(self.fd, self.size_bytes)
            COUNTERS.cut_bytes += cut
            logger.warning("%s: cut %d torn bytes at position %d", self.path, cut, self.size_bytes)
        if self.first_append_ms < 0 and self.size_bytes:
            self.first_append_ms = self._guess_first_append()

    def check_again(self, following_offset: int, *, sparse: bool) -> None:
        """Read the whole of a closed segment that is not what it was, to know what of it can still be served."""
        file_bytes = self.size_bytes
        self._index = SparseIndex()
        self.size_bytes, self.next_offset, self.damaged = 0, self.base_offset, []
        self._take_rest(file_bytes, following_offset, sparse or self.cleaned_ms >= 0)
        self.size_bytes, self.next_offset = file_bytes, following_offset

    def _take_rest(self, file_bytes: int, following_offset: int | None, sparse: bool) -> None:
        if file_bytes > self.size_bytes:
            with mmap.mmap(self.fd, file_bytes, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
                self._check_rest(mapped, view, sparse, following_offset)
        damaged_end = self.size_bytes < file_bytes
        if following_offset is not None and self.next_offset < following_offset and (damaged_end or not sparse):
            self._note_damage(Damage(self.next_offset, following_offset, self.size_bytes))
            self.next_offset = following_offset

    def _check_rest(self, mapped: mmap.mmap, view: memoryview, sparse: bool, following_offset: int | None) -> None:
        own_entry = False
        while True:
            following = intact_batches(
                view, self.size_bytes, self.next_offset, dense=not sparse, below=following_offset
            )
            for header, _ in following:
                self._take(header, own_entry=own_entry)
                own_entry = False
            if self.size_bytes == len(view):
                return
            found = find_intact(mapped, view, self.size_bytes, self.next_offset, following_offset)
            if found is None:
                return
            header, position = found
            if following_offset is None:
                aside = set_aside(self.path, view, self.size_bytes)
                COUNTERS.damaged_batches += 1
                logger.error(
                    "%s: damaged at position %d, and intact batches follow from offset %d. The log ends before the "
                    "damage now, at offset %d; what was behind it is in %s",
                    self.path,
                    self.size_bytes,
                    header.base_offset,
                    self.next_offset,
                    aside,
                )
                return
            self._note_damage(Damage(self.next_offset, header.base_offset, self.size_bytes))
            self.size_bytes, self.next_offset, own_entry = position, header.base_offset, True

    def _note_damage(self, damage: Damage) -> None:
        COUNTERS.damaged_batches += 1
        self.damaged.append(damage)
        logger.error(
            "%s: damaged at position %d, offsets %d to %d cannot be read; consumers that reach them get an error",
            self.path,
            damage.position,
            damage.first_offset,
            damage.next_offset - 1,
        )

    def _guess_first_append(self) -> int:
        written_ms = int(self.path.stat().st_mtime * 1000)
        first_ms = self._index.newest[0] if self._index.newest else -1
        return first_ms if 0 <= first_ms <= written_ms else written_ms

    # Index file

    def encode_index(self) -> bytes:
        """The index of everything appended so far; to be saved when that is flushed."""
        facts = SegmentFacts(*(getattr(self, name) for name in SegmentFacts.__slots__))
        return self._index.encode(facts)

    def save_index(self, encoded: bytes, size_bytes: int) -> None:
        """Write what encode_index() returned when the segment had `size_bytes`. Raises OSError; safe in a thread.

        Not forced to disk: a torn one is noticed by its checksum, and a start without it only takes longer.
        """
        with self._file.lock:
            if not self.deleted:
                disk.write_whole(self.path.with_suffix(".index"), encoded, durable=False)
                self.indexed_bytes = size_bytes

    def _load_index(self, file_bytes: int) -> bool:
        """Take the index from beside the file; False when there is none that fits the file."""
        path = self.path.with_suffix(".index")
        try:
            decoded = SparseIndex.decode(path.read_bytes())
        except FileNotFoundError:
            return False
        if decoded is not None and decoded[1].size_bytes <= file_bytes:
            index, facts = decoded
            self._index = index
            for name in SegmentFacts.__slots__:
                setattr(self, name, getattr(facts, name))
            if self._index_fits():
                return True
        logger.warning("%s: does not fit its segment, made again from the data", path)
        self._index = SparseIndex()
        SegmentFacts.__init__(self, next_offset=self.base_offset)
        return False

    def _index_fits(self) -> bool:
        """Whether the batches from the last entry on are where the index says, and end where it ends."""
        if not self._index.positions:
            return self.size_bytes == 0
        at, expected = self._index.positions[-1], self._index.offsets[-1]
        stop = min((damage.position for damage in self.damaged if damage.position >= at), default=self.size_bytes)
        try:
            for header, position in self.batches(at, stop):
                if header.base_offset < expected or (
                    at == self._index.positions[-1] and header.base_offset != expected
                ):
                    return False
                at, expected = position + header.size_bytes, header.last_offset + 1
        except CorruptBatch:
            return False
        return at == stop and expected <= self.next_offset
