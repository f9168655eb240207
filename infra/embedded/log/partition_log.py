"""One partition: its segments, the producers it remembers, and who waits for more.

Appends happen in the event loop, one at a time; that is what makes offsets dense and sequences checkable
without locks. Acknowledged means handed to the operating system: a kill of the process loses nothing, a
power cut can lose what was not flushed yet (see BrokerConfig.flush_policy).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agl_stream.infra.embedded.log.batch import (
    BatchHeader,
    Buffer,
    CorruptBatch,
    assigned_prefix,
    check_batch,
    control_batch,
    is_commit_marker,
    iter_records,
    read_header,
)
from agl_stream.infra.embedded.log.producer_state import AbortedTransaction, ProducerStates, Verdict
from agl_stream.infra.embedded.log.segment import Segment, segment_name
from agl_stream.infra.embedded.log.topic_config import TopicConfig
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.storage import write_atomically

logger = logging.getLogger(__name__)

_VERDICT_ERRORS = {
    Verdict.OUT_OF_ORDER: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Verdict.OLD_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


@dataclass(frozen=True, slots=True)
class Appended:
    """Outcome of an append: `base_offset` is valid when `error` is NONE (also for a repeated batch)."""

    error: ErrorCode
    base_offset: int = -1
    message: str | None = None


class PartitionLog:
    """Log of one partition in its own folder."""

    def __init__(self, topic: str, partition: int, folder: Path, config: TopicConfig) -> None:
        """Open the log and recover it; raises OSError when the folder cannot be used."""
        self.topic = topic
        self.partition = partition
        self.folder = folder
        self.config = config
        self.deleted = False
        self.waiters: set[Callable[[], None]] = set()
        self.producers = ProducerStates()
        self.cleaned_to_offset = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.segments = self._open_segments()
        self.start_offset = max(self.segments[0].base_offset, self._load_start_offset())
        self._active = self.segments[-1]

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})>"

    @property
    def end_offset(self) -> int:
        """Offset of the next record: the high watermark, as there are no replicas to wait for."""
        return self._active.next_offset

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction is decided: the limit of a read_committed consumer."""
        return self.producers.last_stable_offset(self._active.next_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # Opening

    def _open_segments(self) -> list[Segment]:
        for leftover in (*self.folder.glob("*.tmp"), *self.folder.glob("*.cleaned")):
            leftover.unlink()
        names = sorted(path.stem for path in self.folder.glob("*.log"))
        segments = [Segment(self.folder / f"{name}.log", int(name)) for name in names]
        if not segments:
            return [Segment.create(self.folder, 0)]
        for number, segment in enumerate(segments[:-1]):
            if not segment.load_index() and segment.recover(verify_from=0):
                logger.error(
                    "%s: damaged before its end, offsets up to %d are missing",
                    segment.path,
                    segments[number + 1].base_offset,
                )
        self._recover_active(segments)
        return segments

    def _recover_active(self, segments: list[Segment]) -> None:
        """Scan the last segment; take the producers from the snapshot at its start, or else from the whole log."""
        active = segments[-1]
        restored = self._load_snapshot(active)
        if restored is None and len(segments) > 1:
            for segment in segments[:-1]:
                segment.recover(segment.flushed_bytes, self._remember)
        elif restored is not None:
            self.producers = restored
        clean_bytes = self._load_clean_size(active)
        active.recover(clean_bytes, self._remember, dense=True)
        if active.size_bytes:
            active.first_append_ms = int(active.path.stat().st_mtime * 1000)

    def _load_snapshot(self, segment: Segment) -> ProducerStates | None:
        try:
            return ProducerStates.restore(json.loads(segment.path.with_suffix(".snapshot").read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            logger.warning("%s: unreadable producer snapshot (%s), reading the whole log instead", segment.path, error)
            return None

    def _load_clean_size(self, segment: Segment) -> int:
        """Bytes of the active segment known to be flushed: written at a graceful close."""
        try:
            name, size_bytes = json.loads((self.folder / "clean").read_bytes())
        except (FileNotFoundError, ValueError):
            return 0
        return size_bytes if name == segment.path.name else 0

    def _load_start_offset(self) -> int:
        try:
            return int((self.folder / "start-offset").read_text())
        except FileNotFoundError:
            return 0

    def _remember(self, header: BatchHeader, batch: Buffer) -> None:
        if header.producer_id < 0:
            return
        if header.is_control:
            self.producers.record_marker(header, is_commit_marker(batch))
        else:
            self.producers.record(header)

    # Writing

    def append(self, batch: Buffer, *, check: Callable[[BatchHeader], ErrorCode] | None = None) -> Appended:
        """Add one batch of a producer as it is, giving it the next offsets.

        A batch that an idempotent producer sent before is answered with its first offset and not stored again.
        `check` sees the header of an intact batch and may refuse it.
        """
        if len(batch) > self.config.max_message_bytes:
            return Appended(
                ErrorCode.MESSAGE_TOO_LARGE,
                message=f"batch of {len(batch)} bytes; max.message.bytes is {self.config.max_message_bytes}",
            )
        try:
            header = check_batch(batch)
        except CorruptBatch as error:
            return Appended(ErrorCode.CORRUPT_MESSAGE, message=str(error))
        if header.is_control or (header.producer_id >= 0 and header.base_sequence < 0):
            return Appended(ErrorCode.INVALID_RECORD, message="a control batch or a batch without a sequence")
        error = check(header) if check is not None else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return Appended(error)
        if header.producer_id >= 0:
            verdict, base_offset = self.producers.judge(header)
            if verdict is Verdict.DUPLICATE:
                return Appended(ErrorCode.NONE, base_offset)
            if verdict is not Verdict.ACCEPT:
                return Appended(_VERDICT_ERRORS[verdict])
        return self._write(batch, header)

    def append_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> Appended:
        """End a producer's transaction on this partition."""
        batch = control_batch(producer_id, producer_epoch, commit)
        return self._write(batch, read_header(batch), commit)

    def _write(self, batch: Buffer, header: BatchHeader, commit: bool = False) -> Appended:
        now_ms = time.time_ns() // 1_000_000
        try:
            if self._must_roll(header.size_bytes, now_ms):
                self.roll()
            base_offset = self._active.next_offset
            header = header._replace(base_offset=base_offset)
            self._active.append(assigned_prefix(base_offset, header.length), memoryview(batch), header, now_ms)
        except OSError as error:
            logger.error("%s-%d: cannot write to %s (%s)", self.topic, self.partition, self.folder, error.strerror)
            return Appended(ErrorCode.KAFKA_STORAGE_ERROR, message=f"the broker cannot write: {error.strerror}")
        if header.producer_id >= 0:
            if header.is_control:
                self.producers.record_marker(header, commit)
            else:
                self.producers.record(header)
        for wake in tuple(self.waiters):
            wake()
        return Appended(ErrorCode.NONE, base_offset)

    def _must_roll(self, size_bytes: int, now_ms: int) -> bool:
        active = self._active
        if not active.size_bytes:
            return False
        if active.size_bytes + size_bytes > self.config.segment_bytes:
            return True
        return 0 <= active.first_append_ms < now_ms - self.config.segment_ms

    def roll(self) -> None:
        """Close the active segment and start the next one; the closed one is flushed later, by flush_closed()."""
        snapshot = self.folder / segment_name(self.end_offset)
        write_atomically(snapshot.with_suffix(".snapshot"), json.dumps(self.producers.snapshot()).encode())
        segment = Segment.create(self.folder, self.end_offset)
        self.segments.append(segment)
        self._active = segment

    # Reading

    def locate(self, offset: int, max_bytes: int, end_offset: int) -> tuple[Segment, int, int] | None:
        """(segment, position, size) of whole batches from `offset` up to `end_offset`, None when there are none.

        At least one batch, else at most `max_bytes`. The first batch may begin before `offset`, as in Kafka: clients
        skip what they did not ask for. Raises CorruptBatch or OSError.
        """
        number = self._segment_number(offset)
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset >= end_offset:
                break
            position, size_bytes = segment.locate(offset, max_bytes, end_offset)
            if size_bytes:
                return segment, position, size_bytes
            number += 1
        return None

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """The bytes that locate() finds; empty when there are none."""
        found = self.locate(offset, max_bytes, end_offset)
        if found is None:
            return b""
        segment, position, size_bytes = found
        return os.pread(segment.fd, size_bytes, position)

    def _segment_number(self, offset: int) -> int:
        number = len(self.segments) - 1
        while number > 0 and self.segments[number].base_offset > offset:
            number -= 1
        return number

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self.producers.aborted_between(first_offset, end_offset)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int]:
        """(offset, timestamp) of the first record at or after a time, (-1, -1) when there is none."""
        for segment in self.segments:
            if segment.max_timestamp_ms < timestamp_ms or segment.next_offset <= self.start_offset:
                continue
            found = segment.first_batch_reaching(timestamp_ms, self.start_offset)
            if found is None:
                continue
            header, batch = found
            try:
                for record in iter_records(batch, header):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= self.start_offset:
                        return record.offset, record.timestamp_ms
            except CorruptBatch as error:
                logger.warning("%s-%d: batch at %d: %s", self.topic, self.partition, header.base_offset, error)
                return max(header.base_offset, self.start_offset), header.max_timestamp
        return -1, -1

    def offset_of_max_timestamp(self) -> tuple[int, int]:
        """(offset, timestamp) of the record with the largest timestamp, (-1, -1) when the log is empty."""
        newest = max((segment.max_timestamp_ms for segment in self.segments if segment.size_bytes), default=-1)
        return (-1, -1) if newest < 0 else self.offset_for_time(newest)

    # Shortening and closing

    def delete_before(self, offset: int) -> None:
        """Make `offset` the log's start for ever, and drop the segments that lie wholly below it."""
        if offset <= self.start_offset:
            return
        write_atomically(self.folder / "start-offset", str(offset).encode())
        self.start_offset = offset
        self.drop_dead_segments()

    def drop_dead_segments(self) -> int:
        """Delete closed segments that lie below the start; returns how many."""
        dead = [segment for segment in self.segments[:-1] if segment.next_offset <= self.start_offset]
        for segment in dead:
            self.segments.remove(segment)
            segment.delete()
        return len(dead)

    def flush_closed(self) -> None:
        """fsync closed segments that were not flushed yet and save their indexes. Blocks; safe in a thread."""
        for segment in tuple(self.segments[:-1]):
            if segment.flushed_bytes < segment.size_bytes and not self.deleted:
                segment.flush()
                segment.save_index()

    def flush(self) -> None:
        """fsync everything appended so far. Blocks; safe in a thread."""
        self.flush_closed()
        active = self._active
        if active.flushed_bytes < active.size_bytes:
            active.flush()

    def close(self) -> None:
        """Flush and close; the next start need not verify what is there."""
        if not self.deleted:
            self.flush()
            write_atomically(
                self.folder / "clean", json.dumps([self._active.path.name, self._active.size_bytes]).encode()
            )
        for segment in self.segments:
            segment.close()
