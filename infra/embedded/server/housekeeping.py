"""What the broker does without being asked: flushing, retention, compaction, expiry."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from agl_stream.infra.embedded.log.cleaner import compact
from agl_stream.infra.embedded.log.retention import apply_retention

if TYPE_CHECKING:
    from agl_stream.infra.embedded.server.node import Node

logger = logging.getLogger(__name__)


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
        while True:
            await asyncio.sleep(period_seconds)
            try:
                await self._node.flusher.flush(self._node.catalogue.logs())
                self._node.flush_journals()
            except OSError as error:
                logger.error("flush failed: %s", error)

    async def _keep_logs(self, period_seconds: float) -> None:
        while True:
            await asyncio.sleep(period_seconds)
            try:
                await self._keep_logs_once()
            except OSError as error:
                logger.error("housekeeping failed and is tried again: %s", error)

    async def _keep_logs_once(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for log in self._node.catalogue.logs():
            if log.deleted:
                continue
            apply_retention(log, now_ms)
            if len(log.segments) > 1:
                await asyncio.to_thread(log.flush_closed)
                if log.config.compact:
                    await compact(log, now_ms)
        self._node.expire()
