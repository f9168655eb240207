"""fsync off the event loop, shared by everyone who waits for the same file (group commit)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from agl_stream.infra.embedded.log.metrics import COUNTERS


class Flushable(Protocol):
    """A partition or a journal. flush() blocks, is called in a thread, and raises OSError."""

    def flush(self) -> None: ...


class Flusher:
    """At most one fsync of a thing at a time; those who come meanwhile share the next one."""

    def __init__(self) -> None:
        self._running: dict[Flushable, asyncio.Task[None]] = {}
        self._next: dict[Flushable, asyncio.Task[None]] = {}

    async def flush(self, things: Iterable[Flushable]) -> dict[Flushable, OSError]:
        """Return when everything appended to `things` before the call is on disk, or refused: those, and why."""
        COUNTERS.flush_waits += 1
        wanted = list(set(things))
        outcomes = await asyncio.gather(
            *(asyncio.shield(self._task(thing)) for thing in wanted), return_exceptions=True
        )
        refused: dict[Flushable, OSError] = {}
        for thing, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, OSError):
                refused[thing] = outcome
            elif outcome is not None:
                raise outcome
        return refused

    def _task(self, thing: Flushable) -> asyncio.Task[None]:
        """A flush that has not begun yet: a running one may have missed the latest append."""
        waiting = self._next.get(thing)
        if waiting is None:
            waiting = self._next[thing] = asyncio.create_task(self._run_after(thing, self._running.get(thing)))
        return waiting

    async def _run_after(self, thing: Flushable, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running[thing] = self._next.pop(thing)
        try:
            await asyncio.to_thread(thing.flush)
        finally:
            if self._running.get(thing) is asyncio.current_task():
                del self._running[thing]

    async def close(self) -> None:
        """Wait for the flushes under way."""
        pending = [*self._running.values(), *self._next.values()]
        if pending:
            await asyncio.wait(pending)
