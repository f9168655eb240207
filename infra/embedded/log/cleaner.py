"""Retention by time and size, and compaction of closed segments."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from agl_stream.infra.embedded.log.batch import BatchHeader, CorruptBatch, StoredRecord, build_batch, iter_records
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.producer_state import AbortedTransaction
from agl_stream.infra.embedded.log.segment import Segment

logger = logging.getLogger(__name__)


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete whole closed segments that are over the topic's retention; returns how many.

    The active segment is closed first when everything in it is over the time.
    """
    if not log.config.delete:
        return 0
    retention_ms = log.config.retention_ms
    active = log.segments[-1]
    expired = retention_ms >= 0 and active.size_bytes > 0 and active.max_timestamp_ms < now_ms - retention_ms
    if expired and not log.producers.open_producers:
        log.roll()
    doomed = 0
    excess = log.size_bytes - log.config.retention_bytes if log.config.retention_bytes >= 0 else 0
    stable = log.last_stable_offset
    for segment in log.segments[:-1]:
        too_old = retention_ms >= 0 and segment.max_timestamp_ms < now_ms - retention_ms
        too_much = excess >= segment.size_bytes > 0
        if segment.next_offset > stable or not (too_old or too_much):
            break
        excess -= segment.size_bytes
        doomed += 1
    if doomed:
        start = log.segments[doomed].base_offset
        logger.info("%s-%d: retention moves the start to offset %d", log.topic, log.partition, start)
        log.delete_before(start)
    return doomed


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a cleaning run works on; taken in the event loop, read in a thread."""

    segments: list[Segment]
    aborted: list[AbortedTransaction]
    start_offset: int
    tombstones_before_ms: int


async def compact(log: PartitionLog, now_ms: int) -> bool:
    """Keep only the last record of each key in closed segments, when enough of them is not yet clean.

    Records of open transactions are not touched, those of aborted ones are dropped. Tombstones go after
    delete.retention.ms. Offsets never change. Records without a key are kept: they supersede nothing.
    """
    config = log.config
    settled = [
        segment
        for segment in log.segments[:-1]
        if segment.next_offset <= log.last_stable_offset
        and segment.max_timestamp_ms <= now_ms - config.min_compaction_lag_ms
    ]
    total = sum(segment.size_bytes for segment in settled)
    dirty = sum(segment.size_bytes for segment in settled if not segment.cleaned)
    if not dirty or dirty < config.min_cleanable_dirty_ratio * total:
        return False
    plan = _Plan(settled, list(log.producers.aborted), log.start_offset, now_ms - config.delete_retention_ms)
    try:
        rewritten = await asyncio.to_thread(_rewrite_all, plan)
    except CorruptBatch as error:
        logger.error("%s-%d: not compacted, a batch cannot be read: %s", log.topic, log.partition, error)
        return False
    for segment, replacement in zip(settled, rewritten, strict=True):
        if log.deleted or segment not in log.segments:
            replacement.unlink(missing_ok=True)
        else:
            _swap(log, segment, replacement)
    logger.info(
        "%s-%d: compacted %d segments, %d to %d bytes", log.topic, log.partition, len(settled), total, log.size_bytes
    )
    return True


def _swap(log: PartitionLog, segment: Segment, replacement: Path) -> None:
    """Put the cleaned file in the segment's place. The index goes first: a stale one must not survive a kill."""
    segment.path.with_suffix(".index").unlink(missing_ok=True)
    segment.close()
    replacement.replace(segment.path)
    fresh = Segment(segment.path, segment.base_offset)
    fresh.recover(verify_from=segment.path.stat().st_size)
    fresh.first_append_ms, fresh.cleaned = segment.first_append_ms, True
    fresh.next_offset = segment.next_offset
    log.segments[log.segments.index(segment)] = fresh
    fresh.save_index()


def _rewrite_all(plan: _Plan) -> list[Path]:
    latest = _latest_offsets(plan)
    return [_rewrite(segment, plan, latest) for segment in plan.segments]


def _is_aborted(plan: _Plan, header: BatchHeader) -> bool:
    return header.is_transactional and any(
        aborted.producer_id == header.producer_id and aborted.first_offset <= header.base_offset <= aborted.last_offset
        for aborted in plan.aborted
    )


def _latest_offsets(plan: _Plan) -> dict[bytes, int]:
    latest: dict[bytes, int] = {}
    for segment in plan.segments:
        for header, position in segment.batches(0, segment.size_bytes):
            if header.is_control or _is_aborted(plan, header):
                continue
            for record in iter_records(segment.read_batch(header, position), header):
                if record.key is not None:
                    latest[record.key] = record.offset
    return latest


def _rewrite(segment: Segment, plan: _Plan, latest: dict[bytes, int]) -> Path:
    path = segment.path.with_suffix(".cleaned")
    with path.open("wb") as file:
        for header, position in segment.batches(0, segment.size_bytes):
            batch = segment.read_batch(header, position)
            if header.is_control:
                file.write(batch)
                continue
            if _is_aborted(plan, header) or header.last_offset < plan.start_offset:
                continue
            records = list(iter_records(batch, header))
            kept = [record for record in records if _survives(record, plan, latest)]
            if len(kept) == len(records):
                file.write(batch)
            elif kept:
                file.write(build_batch([record.encoded for record in kept], header))
        file.flush()
        os.fsync(file.fileno())
    return path


def _survives(record: StoredRecord, plan: _Plan, latest: dict[bytes, int]) -> bool:
    if record.key is None:
        return True
    if latest[record.key] != record.offset:
        return False
    return record.has_value or record.timestamp_ms >= plan.tombstones_before_ms
