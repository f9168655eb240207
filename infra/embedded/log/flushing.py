"""fsync off the event loop, shared by everyone who waits for the same partition (group commit)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agl_stream.infra.embedded.log.partition_log import PartitionLog


class Flusher:
    """At most one fsync a partition at a time; those who come meanwhile share the next one."""

    def __init__(self) -> None:
        self._running: dict[PartitionLog, asyncio.Task[None]] = {}
        self._next: dict[PartitionLog, asyncio.Task[None]] = {}

    async def flush(self, logs: Iterable[PartitionLog]) -> None:
        """Return when everything appended to `logs` before the call is on disk. Raises OSError."""
        await asyncio.gather(*(asyncio.shield(self._task(log)) for log in set(logs) if not log.deleted))

    def _task(self, log: PartitionLog) -> asyncio.Task[None]:
        """A flush that has not begun yet: a running one may have missed the latest append."""
        waiting = self._next.get(log)
        if waiting is None:
            waiting = self._next[log] = asyncio.create_task(self._run_after(log, self._running.get(log)))
        return waiting

    async def _run_after(self, log: PartitionLog, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running[log] = self._next.pop(log)
        try:
            await asyncio.to_thread(log.flush)
        finally:
            if self._running.get(log) is asyncio.current_task():
                del self._running[log]

    async def close(self) -> None:
        """Wait for the flushes under way."""
        pending = [*self._running.values(), *self._next.values()]
        if pending:
            await asyncio.wait(pending)
