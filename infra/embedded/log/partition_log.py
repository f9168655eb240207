"""One partition: its segments, the producers it remembers, and who waits for more.

Appends happen in the event loop, one at a time; that is what makes offsets dense and sequences checkable
without locks. Acknowledged means handed to the operating system: a kill of the process loses nothing, a
power cut can lose what was not flushed yet (see BrokerConfig.flush_policy).
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log import snapshots
from agl_stream.infra.embedded.log.batch import (
    MAX_RECORDS,
    BatchHeader,
    Buffer,
    CorruptBatch,
    assigned_prefix,
    check_batch,
    control_batch,
    iter_records,
    read_header,
    why_not_produced,
)
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.log.producer_state import AbortedTransaction, Verdict
from agl_stream.infra.embedded.log.recovery import (
    CleanerMarks,
    load_start_offset,
    open_segments,
    restore_producers,
    save_start_offset,
)
from agl_stream.infra.embedded.log.segment import Segment
from agl_stream.infra.embedded.log.topic_config import TopicConfig
from agl_stream.infra.embedded.protocol.errors import ErrorCode

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
        disk.make_folder(folder)
        self.cleaner = CleanerMarks.load(folder)
        self.segments = open_segments(folder, self.cleaner.sparse_below)
        self.start_offset = max(self.segments[0].base_offset, load_start_offset(folder))
        self._snapshot_offset, self.producers = restore_producers(folder, self.segments)
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
        objection = why_not_produced(header)
        if objection is not None:
            return Appended(ErrorCode.INVALID_RECORD, message=objection)
        error = check(header) if check is not None else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return Appended(error)
        if header.producer_id >= 0:
            verdict, base_offset = self.producers.judge(header)
            if verdict is Verdict.DUPLICATE:
                COUNTERS.repeated_batches += 1
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
            COUNTERS.refused_appends += 1
            logger.error("%s-%d: cannot write to %s (%s)", self.topic, self.partition, self.folder, error.strerror)
            return Appended(ErrorCode.KAFKA_STORAGE_ERROR, message=f"the broker cannot write: {error.strerror}")
        if header.producer_id >= 0:
            if header.is_control:
                self.producers.record_marker(header, commit, now_ms)
            else:
                self.producers.record(header, now_ms)
        COUNTERS.appended_batches += 1
        COUNTERS.appended_bytes += header.size_bytes
        for wake in tuple(self.waiters):
            wake()
        return Appended(ErrorCode.NONE, base_offset)

    def _must_roll(self, size_bytes: int, now_ms: int) -> bool:
        active = self._active
        if not active.size_bytes:
            return False
        if active.size_bytes + size_bytes > self.config.segment_bytes:
            return True
        return self.roll_is_due(now_ms)

    def roll_is_due(self, now_ms: int) -> bool:
        """Whether the active segment has been written to for segment.ms, or cannot be compacted in time any more."""
        config = self.config
        longest_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        return 0 <= self._active.first_append_ms < now_ms - longest_ms

    def roll(self) -> None:
        """Close the active segment and start the next one; the closed one is flushed later. Raises OSError."""
        self.save_snapshot()
        segment = Segment.create(self.folder, self.end_offset)
        self.segments.append(segment)
        self._active = segment
        COUNTERS.rolled_segments += 1

    def save_snapshot(self) -> None:
        """Keep what is known of the producers, so that a start need not read the batches so far. Raises OSError."""
        if self._snapshot_offset != self.end_offset:
            snapshots.save(self.folder, self.end_offset, self.producers)
            self._snapshot_offset = self.end_offset

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
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self.producers.aborted_between(first_offset, end_offset)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int]:
        """(offset, timestamp) of the first record at or after a time, (-1, -1) when there is none.

        Batches may say that they reach a time which none of their records has: the newest was compacted away, or the
        producer lied. After so many records the next batch's word is taken, which can only be too early.
        """
        left = MAX_RECORDS
        for segment in self.segments:
            if segment.max_timestamp_ms < timestamp_ms or segment.next_offset <= self.start_offset:
                continue
            for header, batch in segment.batches_reaching(timestamp_ms, self.start_offset):
                if left <= 0:
                    return max(header.base_offset, self.start_offset), header.max_timestamp
                left -= header.record_count
                try:
                    for record in iter_records(batch, header):
                        if record.timestamp_ms >= timestamp_ms and record.offset >= self.start_offset:
                            return record.offset, record.timestamp_ms
                except CorruptBatch as error:
                    logger.warning("%s-%d: batch at %d: %s", self.topic, self.partition, header.base_offset, error)
                    return max(header.base_offset, self.start_offset), header.max_timestamp
        return -1, -1

    def offset_of_max_timestamp(self) -> tuple[int, int]:
        """(offset, timestamp) of the first record with the largest timestamp that is left, (-1, -1) when none is."""
        newest = max(segment.newest_from(self.start_offset) for segment in self.segments)
        return (-1, -1) if newest < 0 else self.offset_for_time(newest)

    # Shortening and closing

    def delete_before(self, offset: int) -> None:
        """Make `offset` the log's start for ever, and drop the segments that lie wholly below it. Raises OSError.

        The segments go first: that makes room for the file that keeps the offset, should there be none.
        """
        if offset <= self.start_offset:
            return
        self.drop_segments_below(offset)
        if offset > self.segments[0].base_offset:
            save_start_offset(self.folder, offset)
        self.start_offset = offset

    def drop_segments_below(self, offset: int) -> int:
        """Delete closed segments that lie wholly below `offset`, oldest first; returns how many.

        Writes nothing: also a full disk can be freed. What is left begins where the first segment does.
        """
        dropped = 0
        while len(self.segments) > 1 and self.segments[1].base_offset <= offset:
            self.segments.pop(0).delete()
            dropped += 1
        COUNTERS.deleted_segments += dropped
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        return dropped

    def flush_closed(self) -> None:
        """Flush closed segments that were not flushed yet and save their indexes. Blocks; safe in a thread."""
        for segment in tuple(self.segments[:-1]):
            segment.flush()
            if segment.indexed_bytes < segment.size_bytes:
                segment.save_index(segment.encode_index(), segment.size_bytes)

    def flush(self) -> None:
        """Force everything appended so far to disk. Blocks; safe in a thread. Raises OSError."""
        if self.deleted:
            return
        for segment in tuple(self.segments):
            segment.flush()

    def checkpoint(self) -> Callable[[], None]:
        """Take note of the state; the function that is returned makes it what a start begins with.

        That one blocks and is safe in a thread. It raises OSError, and then the last checkpoint still holds.
        """
        active, size_bytes = self._active, self._active.size_bytes
        encoded = active.encode_index()

        def save() -> None:
            self.flush()
            self.flush_closed()
            active.save_index(encoded, size_bytes)

        self.save_snapshot()
        return save

    def check_again(self, segment: Segment) -> None:
        """Find out what can still be read of a closed segment that was found damaged; the rest answers with errors."""
        following = self.segments[self.segments.index(segment) + 1].base_offset
        segment.check_again(following, sparse=segment.base_offset < self.cleaner.sparse_below)
        segment.save_index(segment.encode_index(), segment.size_bytes)

    @property
    def bytes_since_checkpoint(self) -> int:
        """What the next start would have to read and check, were the process killed now."""
        return self._active.size_bytes - self._active.indexed_bytes

    def close(self) -> None:
        """Flush and close; the next start need not read what is there.

        What a full disk refuses is only logged: it costs the next start time and nothing else.
        """
        if not self.deleted:
            try:
                self.checkpoint()()
            except OSError as error:
                logger.error("%r: closed without a checkpoint (%s)", self, error.strerror)
        for segment in self.segments:
            segment.close()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
