"""What storage has done since the process began, as plain counters, and how much it holds now.

One instance for the process. Counters are raised in the event loop and in the threads that flush and compact; a lost
count when two of them meet is accepted, as nothing but a graph depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agl_stream.infra.embedded.log.partition_log import PartitionLog


@dataclass(slots=True)
class StorageCounters:
    """Each only grows."""

    appended_batches: int = 0
    """Batches added to logs: data and transaction markers."""
    appended_bytes: int = 0
    """Bytes of those batches."""
    repeated_batches: int = 0
    """Batches of idempotent producers that were there already and were answered with their first offset."""
    refused_appends: int = 0
    """Appends the file system refused. Rising: the disk is full or broken."""
    journal_entries: int = 0
    """Entries added to the journals of offsets and transactions."""
    fsyncs: int = 0
    """Files forced to disk, logs and journals together."""
    folder_fsyncs: int = 0
    """Folders forced to disk, so that names in them survive a power cut."""
    failed_fsyncs: int = 0
    """Refused fsyncs. Any: the disk is full or broken, and producers under every-write wait."""
    flush_waits: int = 0
    """Requests that waited for the disk before they were answered; over `fsyncs`, how well group commit works."""
    rolled_segments: int = 0
    deleted_segments: int = 0
    """Segments removed by retention and DeleteRecords."""
    compaction_passes: int = 0
    compacted_bytes_read: int = 0
    compacted_bytes_written: int = 0
    failed_compactions: int = 0
    """Passes that ended without effect, for damage or a full disk. They are tried again."""
    cut_bytes: int = 0
    """Bytes of torn ends, cut at a start after a kill or a power cut."""
    damaged_batches: int = 0
    """Places where a batch failed its checksum. Any: see the log, which names file, position and offsets."""
    rebuilt_indexes: int = 0
    """Indexes that were missing, stale or torn and were made again from the data."""


COUNTERS = StorageCounters()


@dataclass(frozen=True, slots=True)
class StorageSize:
    """How much the logs hold."""

    partitions: int
    segments: int
    log_bytes: int
    unflushed_bytes: int
    """What a power cut could take now; under every-write only what is not acknowledged yet."""


def measure(logs: Iterable[PartitionLog]) -> StorageSize:
    """Sizes now; costs a look at every segment."""
    partitions = segments = log_bytes = unflushed_bytes = 0
    for log in logs:
        partitions += 1
        for segment in log.segments:
            segments += 1
            log_bytes += segment.size_bytes
            unflushed_bytes += segment.size_bytes - segment.flushed_bytes
    return StorageSize(partitions, segments, log_bytes, unflushed_bytes)
