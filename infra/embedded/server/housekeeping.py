"""What the broker does without being asked: flushing, retention, compaction, checks of old data, expiry."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from agl_stream.infra.embedded.log.cleaner import compact
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.retention import apply_retention
from agl_stream.infra.embedded.log.scan import is_intact

if TYPE_CHECKING:
    from agl_stream.infra.embedded.server.node import Node

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""After so much a partition writes down where it is, so that a start after a kill has less to read and check."""
CHECK_INTERVAL_MS = 86_400_000
"""Every closed segment is read and checked once in this time, one segment at a look."""


class Housekeeping:
    """Background tasks of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._node.config
        self._tasks = [asyncio.create_task(self._keep_logs(config.housekeeping_seconds))]
        if config.flush_policy == "interval":
            self._tasks.append(asyncio.create_task(self._flush(config.flush_interval_seconds)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _flush(self, period_seconds: float) -> None:
        node = self._node
        while True:
            await asyncio.sleep(period_seconds)
            refused = await node.flusher.flush([*node.catalogue.logs(), node.offsets, node.transactions])
            for thing, error in refused.items():
                logger.error("%r: flush failed and is tried again: %s", thing, error)

    async def _keep_logs(self, period_seconds: float) -> None:
        while True:
            await asyncio.sleep(period_seconds)
            await self.look()

    async def look(self) -> None:
        """Do once what is due. What the file system refuses for one log does not keep others from being freed."""
        now_ms = time.time_ns() // 1_000_000
        for log in self._node.catalogue.logs():
            try:
                await self._keep(log, now_ms)
            except OSError as error:
                logger.error("%r: housekeeping failed and is tried again: %s", log, error)
        try:
            self._node.expire()
            await self._check_one(now_ms)
        except OSError as error:
            logger.error("housekeeping failed and is tried again: %s", error)
        self._node.reserve.hold()

    async def _keep(self, log: PartitionLog, now_ms: int) -> None:
        if log.deleted:
            return
        apply_retention(log, now_ms)
        if log.roll_is_due(now_ms):
            log.roll()
        if log.bytes_since_checkpoint >= CHECKPOINT_BYTES:
            await asyncio.to_thread(log.checkpoint())
        if len(log.segments) > 1:
            await asyncio.to_thread(log.flush_closed)
            if log.config.compact:
                await compact(log, now_ms)

    async def _check_one(self, now_ms: int) -> None:
        """Read the closed segment that was not looked at for longest; damage is told and remembered."""
        closed = [(log, number) for log in self._node.catalogue.logs() for number in range(len(log.segments) - 1)]
        if not closed:
            return
        log, number = min(closed, key=lambda each: each[0].segments[each[1]].checked_ms)
        segment = log.segments[number]
        if segment.checked_ms > now_ms - CHECK_INTERVAL_MS:
            return
        try:
            intact = await asyncio.to_thread(is_intact, segment.path, segment.size_bytes, segment.base_offset)
        except FileNotFoundError:
            return  # deleted or compacted meanwhile
        if segment.deleted:
            return
        segment.checked_ms = now_ms
        if not intact:
            log.check_again(segment)
