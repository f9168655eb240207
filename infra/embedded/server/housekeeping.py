"""What the broker does without being asked: stalled connections, flushing, retention, compaction, expiry."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from agl_stream.infra.embedded.log.cleaner import apply_retention, compact

if TYPE_CHECKING:
    from agl_stream.infra.embedded.server.connection import Connection
    from agl_stream.infra.embedded.server.node import Node

logger = logging.getLogger(__name__)

_CONNECTION_CHECK_SECONDS = 5.0


class Housekeeping:
    """Background tasks of one broker."""

    def __init__(self, node: Node, connections: set[Connection]) -> None:
        self._node = node
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._node.config
        connection_check = min(_CONNECTION_CHECK_SECONDS, config.request_read_seconds, config.connection_idle_seconds)
        self._tasks = [
            asyncio.create_task(self._watch_connections(connection_check)),
            asyncio.create_task(self._keep_logs(config.housekeeping_seconds)),
        ]
        if config.flush_policy == "interval":
            self._tasks.append(asyncio.create_task(self._flush(config.flush_interval_seconds)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_connections(self, period_seconds: float) -> None:
        """Close connections that stopped in the middle of a frame, or are silent for long."""
        config = self._node.config
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(period_seconds)
            now = loop.time()
            for connection in list(self._connections):
                silent_seconds = now - connection.last_read
                if connection.reads_frame and silent_seconds > config.request_read_seconds:
                    connection.refuse(f"a frame is incomplete after {silent_seconds:.0f} s (request_read_seconds)")
                elif not connection.is_busy and silent_seconds > config.connection_idle_seconds:
                    connection.close()

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
