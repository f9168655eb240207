"""Compaction: only the last record of each key is kept, beside appends and in bounded memory.

A pass takes as many new keys as fit into the map (16-byte hashes and offsets), rewrites everything up to where that
reached, and the next pass goes on from there, as Kafka's cleaner does. So memory does not grow with the number of
keys; more keys only take more passes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log.batch import CorruptBatch
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.producer_state import AbortedTransaction
from agl_stream.infra.embedded.log.recovery import SWAP, finish_swaps
from agl_stream.infra.embedded.log.rewriting import Output, Plan, Rewriting, Source
from agl_stream.infra.embedded.log.segment import Segment, segment_name

logger = logging.getLogger(__name__)

MAX_KEYS = 500_000
"""New keys of one pass: the map takes 25 MiB for them."""


async def compact(log: PartitionLog, now_ms: int, max_keys: int = MAX_KEYS) -> bool:
    """Compact the closed segments if it is time to; returns whether anything was rewritten.

    Records of open transactions are not touched, those of aborted ones are dropped. Tombstones, and markers of
    transactions of which nothing is left, go delete.retention.ms after the first pass that met them. Offsets never
    change. Records without a key are kept: they supersede nothing. Damage and a full disk end the attempt, are told,
    and leave the log as it was.
    """
    if not _is_due(log, now_ms):
        return False
    before = log.size_bytes
    while True:
        plan = _plan(log, now_ms, max_keys)
        rewriting = Rewriting(plan)
        try:
            await asyncio.to_thread(rewriting.run)
            _swap_all(log, rewriting)
        except (CorruptBatch, OSError) as error:
            COUNTERS.failed_compactions += 1
            logger.error("%s-%d: not compacted: %s", log.topic, log.partition, error)
            rewriting.discard()
            return False
        if log.deleted or not _dirty(log, now_ms):
            break
    logger.info("%s-%d: compacted from %d to %d bytes", log.topic, log.partition, before, log.size_bytes)
    return True


def _settled(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The closed segments from the first on that may be compacted: decided, old enough, and not damaged."""
    settled: list[Segment] = []
    stable, youngest_ms = log.last_stable_offset, now_ms - log.config.min_compaction_lag_ms
    for segment in log.segments[:-1]:
        if segment.next_offset > stable or segment.newest_ms > youngest_ms or segment.damaged:
            break
        settled.append(segment)
    return settled


def _dirty(log: PartitionLog, now_ms: int) -> list[Segment]:
    return [
        segment
        for segment in _settled(log, now_ms)
        if segment.next_offset > max(log.cleaner.clean_below, segment.base_offset)
    ]


def _is_due(log: PartitionLog, now_ms: int) -> bool:
    config = log.config
    settled, dirty = _settled(log, now_ms), _dirty(log, now_ms)
    if dirty:
        dirty_bytes, total_bytes = (sum(segment.size_bytes for segment in part) for part in (dirty, settled))
        if dirty_bytes >= config.min_cleanable_dirty_ratio * total_bytes:
            return True
        if dirty[0].first_append_ms < now_ms - config.max_compaction_lag_ms:
            return True
    return any(
        segment.removable and 0 <= segment.cleaned_ms <= now_ms - config.delete_retention_ms for segment in settled
    )


def _plan(log: PartitionLog, now_ms: int, max_keys: int) -> Plan:
    aborted: dict[int, list[AbortedTransaction]] = {}
    for transaction in log.producers.aborted:
        aborted.setdefault(transaction.producer_id, []).append(transaction)
    sources = [
        Source(
            segment,
            segment.path,
            segment.base_offset,
            segment.next_offset,
            segment.size_bytes,
            segment.first_append_ms,
            segment.cleaned_ms,
        )
        for segment in _settled(log, now_ms)
    ]
    config = log.config
    return Plan(
        sources,
        aborted,
        log.start_offset,
        log.cleaner.clean_below,
        now_ms,
        config.delete_retention_ms,
        config.segment_bytes,
        max_keys,
    )


def _swap_all(log: PartitionLog, rewriting: Rewriting) -> None:
    """Put the outputs in place. In the event loop, so that readers see each run of segments either old or new."""
    if log.deleted:
        rewriting.discard()
        return
    reached = max((output.segment.next_offset for output in rewriting.outputs), default=0)
    if reached > log.cleaner.sparse_below:
        log.cleaner = replace(log.cleaner, sparse_below=reached)
        log.cleaner.save(log.folder)
    while rewriting.outputs:
        output = rewriting.outputs[0]
        if any(source.segment not in log.segments for source in output.replaced):
            output.segment.delete()  # deleted meanwhile, by DeleteRecords
            del rewriting.outputs[0]
        else:
            _decide(log, output)
            del rewriting.outputs[0]
            _take_over(log, output)
    if rewriting.clean_below > log.cleaner.clean_below:
        log.cleaner = replace(log.cleaner, clean_below=rewriting.clean_below)
        log.cleaner.save(log.folder)
    log.producers.forget_aborted_below(rewriting.clean_below)


def _decide(log: PartitionLog, output: Output) -> None:
    """Give the new file its .swap name: from now on a start after a kill puts it in place. Raises OSError."""
    segment = output.segment
    swap = log.folder / f"{segment.base_offset:020d}-{output.replaced[-1].next_offset:020d}{SWAP}"
    disk.rename(segment.path, swap)
    segment.path = swap
    disk.sync_folder(log.folder)


def _take_over(log: PartitionLog, output: Output) -> None:
    """Replace a run of segments. What the file system refuses now is done by the next start."""
    segment, sources = output.segment, output.replaced
    first = log.segments.index(sources[0].segment)
    log.segments[first : first + len(sources)] = [segment]
    for source in sources:
        source.segment.retire()
    COUNTERS.compacted_bytes_written += segment.size_bytes
    try:
        finish_swaps(log.folder)
        segment.path = log.folder / segment_name(segment.base_offset)
        segment.save_index(segment.encode_index(), segment.size_bytes)
    except OSError as error:
        logger.error("%s: not put in place completely (%s), the next start does", segment.path, error.strerror)
