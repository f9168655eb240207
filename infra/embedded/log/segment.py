"""One segment of a partition's log: a file of record batches and a sparse index of it in memory.

The file holds Kafka's v2 batches one after another and nothing else. The index has one entry for about
every 16 KiB of log, so memory does not grow with the number of batches; a read walks batch headers from
the nearest entry. A closed segment keeps its index beside it (`.index`), an active one is scanned on start.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c

from agl_stream.infra.embedded.log.batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    POSITION,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from agl_stream.infra.embedded.storage import write_atomically

logger = logging.getLogger(__name__)

INDEX_INTERVAL_BYTES = 16 * 1024
_INDEX_FORMAT = 1


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


class Segment:
    """Batches from `base_offset` on. Not thread-safe; a closed segment may be read by a cleaning thread."""

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp_ms = -1
        self.first_append_ms = -1
        self.flushed_bytes = 0
        self.cleaned = False
        self._fd: int | None = None
        self._offsets = array("q")
        self._positions = array("q")
        self._max_timestamps = array("q")

    @classmethod
    def create(cls, folder: Path, base_offset: int) -> Segment:
        """A new, empty segment."""
        segment = cls(folder / segment_name(base_offset), base_offset)
        segment._fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return segment

    @property
    def fd(self) -> int:
        """The open file; opened on first use and kept until close()."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def delete(self) -> None:
        self.close()
        for path in (self.path, self.path.with_suffix(".index"), self.path.with_suffix(".snapshot")):
            path.unlink(missing_ok=True)

    # Writing

    def append(self, prefix: bytes, batch: bytes | memoryview, header: BatchHeader, now_ms: int) -> None:
        """Write `batch` with its first bytes replaced by `prefix`; `header` describes the result.

        Raises OSError when the file system refuses; the segment is then as it was before.
        """
        view = memoryview(batch)
        parts = [prefix, view[len(prefix) :]]
        try:
            written = os.pwritev(self.fd, parts, self.size_bytes)
            if written < len(view):
                self._write_rest(prefix + bytes(view[len(prefix) :]), written)
        except OSError:
            os.ftruncate(self.fd, self.size_bytes)
            raise
        if self.first_append_ms < 0:
            self.first_append_ms = now_ms
        self._take(header)

    def _write_rest(self, data: bytes, written: int) -> None:
        while written < len(data):
            written += os.pwrite(self.fd, memoryview(data)[written:], self.size_bytes + written)

    def _take(self, header: BatchHeader) -> None:
        """Account for the batch at the end of the file."""
        if not self._positions or self.size_bytes - self._positions[-1] >= INDEX_INTERVAL_BYTES:
            self._offsets.append(header.base_offset)
            self._positions.append(self.size_bytes)
            self._max_timestamps.append(header.max_timestamp)
        elif header.max_timestamp > self._max_timestamps[-1]:
            self._max_timestamps[-1] = header.max_timestamp
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp)
        self.size_bytes += header.size_bytes
        self.next_offset = header.last_offset + 1

    def flush(self) -> None:
        """fsync. Blocks; may run in a thread while appends go on (what was written before the call is safe)."""
        size_bytes = self.size_bytes
        os.fsync(self.fd)
        self.flushed_bytes = max(self.flushed_bytes, size_bytes)

    # Reading

    def locate(self, offset: int, max_bytes: int, end_offset: int) -> tuple[int, int]:
        """(position, size) of whole batches from the one that holds `offset` (or the next one) up to `end_offset`.

        At most `max_bytes`, but never less than one batch if there is one below `end_offset`; size 0 when there is
        none. Ends where the index has an entry when it can, so that a reader who goes on from there needs no walk.
        Raises CorruptBatch when the file is not what was written to it.
        """
        start = self._position_of(offset)
        limit = self.size_bytes if end_offset >= self.next_offset else self._position_of(end_offset)
        if limit - start <= max_bytes:
            return start, max(limit - start, 0)
        entry = bisect_right(self._positions, start + max_bytes) - 1
        if entry >= 0 and self._positions[entry] > start:
            return start, min(self._positions[entry], limit) - start
        at = start
        for size_bytes, _ in self._walk(start, limit):
            if at > start and at + size_bytes - start > max_bytes:
                break
            at += size_bytes
        return start, at - start

    def _position_of(self, offset: int) -> int:
        """Where the batch begins that holds `offset`, or the first one behind it; else the end of the file."""
        entry = bisect_right(self._offsets, offset) - 1
        at = self._positions[entry] if entry >= 0 else 0
        if entry >= 0 and self._offsets[entry] == offset:
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

    def read_batch(self, header: BatchHeader, position: int) -> bytes:
        return os.pread(self.fd, header.size_bytes, position)

    def first_batch_reaching(self, timestamp_ms: int, start_offset: int) -> tuple[BatchHeader, bytes] | None:
        """First batch at or after `start_offset` whose maximum timestamp is at least `timestamp_ms`."""
        for entry, newest in enumerate(self._max_timestamps):
            if newest < timestamp_ms:
                continue
            begin = self._positions[entry]
            for header, position in self.batches(begin, begin + INDEX_INTERVAL_BYTES):
                if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
                    return header, self.read_batch(header, position)
        return None

    # Start and end

    def recover(
        self,
        verify_from: int,
        on_batch: Callable[[BatchHeader, memoryview], None] | None = None,
        *,
        dense: bool = False,
    ) -> int:
        """Read the batches of the file and cut what is not intact; returns the number of bytes cut.

        Structure is checked everywhere, the CRC from position `verify_from` on. `on_batch` sees each intact batch.
        `dense` also cuts where an offset is missing: that cannot be in a segment that was never compacted, and the
        offset itself is not covered by the CRC.
        """
        file_bytes = os.fstat(self.fd).st_size
        self.size_bytes, self.next_offset, self.max_timestamp_ms = 0, self.base_offset, -1
        for column in (self._offsets, self._positions, self._max_timestamps):
            del column[:]
        if file_bytes:
            with mmap.mmap(self.fd, file_bytes, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
                self._scan(view, verify_from, on_batch, dense)
        cut = file_bytes - self.size_bytes
        if cut:
            os.ftruncate(self.fd, self.size_bytes)
            logger.warning("%s: cut %d torn bytes at position %d", self.path, cut, self.size_bytes)
        self.flushed_bytes = min(verify_from, self.size_bytes)
        return cut

    def _scan(
        self,
        view: memoryview,
        verify_from: int,
        on_batch: Callable[[BatchHeader, memoryview], None] | None,
        dense: bool,
    ) -> None:
        at = 0
        while at + HEADER_BYTES <= len(view):
            header = read_header(view, at)
            end = at + header.size_bytes
            if header.magic != 2 or header.size_bytes < HEADER_BYTES or end > len(view):
                return
            if header.base_offset < self.next_offset or header.last_offset_delta < 0:
                return
            if dense and header.base_offset != self.next_offset:
                return
            with view[at:end] as batch:
                if at >= verify_from:
                    with batch[CRC_FROM:] as covered:
                        if crc32c(covered) != header.crc:
                            return
                self._take(header)
                if on_batch is not None:
                    on_batch(header, batch)
            at = end

    def save_index(self) -> None:
        """Write the index beside the (flushed) file, so that the next start need not scan it."""
        head = {
            "format": _INDEX_FORMAT,
            "size_bytes": self.size_bytes,
            "next_offset": self.next_offset,
            "max_timestamp_ms": self.max_timestamp_ms,
            "first_append_ms": self.first_append_ms,
            "entries": len(self._offsets),
            "cleaned": self.cleaned,
        }
        columns = b"".join(column.tobytes() for column in (self._offsets, self._positions, self._max_timestamps))
        payload = json.dumps(head).encode() + b"\n" + columns
        write_atomically(self.path.with_suffix(".index"), struct.pack(">I", crc32c(payload)) + payload)

    def load_index(self) -> bool:
        """Take the index from beside the file; False when there is none that fits the file."""
        try:
            data = self.path.with_suffix(".index").read_bytes()
        except FileNotFoundError:
            return False
        payload = data[4:]
        if len(data) < 5 or struct.unpack_from(">I", data)[0] != crc32c(payload):
            return False
        first_line, _, columns = payload.partition(b"\n")
        head = json.loads(first_line)
        if head["format"] != _INDEX_FORMAT or head["size_bytes"] != os.fstat(self.fd).st_size:
            return False
        self.size_bytes = self.flushed_bytes = head["size_bytes"]
        self.next_offset, self.max_timestamp_ms = head["next_offset"], head["max_timestamp_ms"]
        self.first_append_ms, self.cleaned = head["first_append_ms"], head["cleaned"]
        width = head["entries"] * 8
        for number, column in enumerate((self._offsets, self._positions, self._max_timestamps)):
            column.frombytes(columns[number * width : (number + 1) * width])
        return True
