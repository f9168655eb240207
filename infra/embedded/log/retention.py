"""Retention by time and size."""

from __future__ import annotations

import logging

from agl_stream.infra.embedded.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete whole closed segments that are over the topic's retention; returns how many.

    The active segment is closed first when everything in it is over the time. Deleting writes nothing, so that a full
    disk gets room. Segments of an open transaction stay.
    """
    if not log.config.delete:
        return 0
    oldest_ms = now_ms - log.config.retention_ms if log.config.retention_ms >= 0 else None
    active = log.segments[-1]
    if (
        oldest_ms is not None
        and active.size_bytes
        and active.newest_ms < oldest_ms
        and not log.producers.open_producers
    ):
        _close_active(log)
    doomed = 0
    excess = log.size_bytes - log.config.retention_bytes if log.config.retention_bytes >= 0 else 0
    stable = log.last_stable_offset
    for segment in log.segments[:-1]:
        too_old = oldest_ms is not None and segment.newest_ms < oldest_ms
        too_much = excess >= segment.size_bytes > 0
        if segment.next_offset > stable or not (too_old or too_much):
            break
        excess -= segment.size_bytes
        doomed += 1
    if doomed:
        start = log.segments[doomed].base_offset
        logger.info("%s-%d: retention moves the start to offset %d", log.topic, log.partition, start)
        log.drop_segments_below(start)
    return doomed


def _close_active(log: PartitionLog) -> None:
    try:
        log.roll()
    except OSError as error:
        logger.warning("%r: no room for a new segment (%s), deleting closed ones first", log, error.strerror)
