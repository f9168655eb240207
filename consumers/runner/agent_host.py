"""Where agent code runs: async agents on an event loop of their own, sync ones in a thread each.

The runner's own loop claims, times out, cancels and reports. An agent that blocks its loop (a forgotten ``await``,
a slow tokenizer) therefore delays other agents and nothing else: their limits are still kept and the broker still
hears from the runner. All threads are daemons, so that an agent that never returns cannot keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Body = Callable[[], Any]


class AgentRun:
    """One call of an agent. ``ended`` is a future of the runner's loop that is set, never cancelled: to the
    (result, error) pair once the agent's code has really returned."""

    __slots__ = ("_control", "_task", "_task_loop", "_wants_cancel", "ended", "is_async")

    def __init__(self, control: asyncio.AbstractEventLoop, is_async: bool) -> None:
        self.ended: asyncio.Future[tuple[Any, BaseException | None]] = control.create_future()
        self.is_async = is_async
        self._control = control
        self._task: asyncio.Task[None] | None = None
        self._task_loop: asyncio.AbstractEventLoop | None = None
        self._wants_cancel = False

    def cancel(self) -> None:
        """Cancel an async agent at its next await; a sync one cannot be interrupted and goes on."""
        if self._task_loop is not None and not self._wants_cancel:
            self._wants_cancel = True
            self._task_loop.call_soon_threadsafe(self._cancel_task)

    def start_task(self, loop: asyncio.AbstractEventLoop, body: Body) -> None:
        self._task_loop = loop
        loop.call_soon_threadsafe(self._create_task, loop, body, context=contextvars.copy_context())

    def start_thread(self, body: Body, name: str) -> None:
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run_sync, body), name=name, daemon=True).start()

    def _create_task(self, loop: asyncio.AbstractEventLoop, body: Body) -> None:
        if self._wants_cancel:
            self._settle(None, asyncio.CancelledError())
        else:
            self._task = loop.create_task(self._run_async(body))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run_async(self, body: Body) -> None:
        try:
            result = await body()
        except BaseException as error:  # noqa: BLE001 - whatever an agent raises is its attempt's end
            self._settle(None, error)
        else:
            self._settle(result, None)

    def _run_sync(self, body: Body) -> None:
        try:
            result = body()
        except BaseException as error:  # noqa: BLE001 - as above; SystemExit in an agent must not end the runner
            self._settle(None, error)
        else:
            self._settle(result, None)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        try:
            self._control.call_soon_threadsafe(self._set_ended, (result, error))
        except RuntimeError:
            # The runner's loop is closed: the process is on its way out and nobody waits for this any more.
            return

    def _set_ended(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)


class AgentHost:
    """Starts agent calls from the runner's loop. ``start`` and ``close`` are for that loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered_at = time.monotonic()
        self._asked_at = 0.0
        self._lag_seconds = 0.0

    def start(self, body: Body, *, is_async: bool, name: str) -> AgentRun:
        """Run ``body`` (a coroutine function when ``is_async``) with a copy of the caller's context."""
        run = AgentRun(asyncio.get_running_loop(), is_async)
        if is_async:
            run.start_task(self._agents_loop(), body)
        else:
            run.start_thread(body, f"agent-{name}")
        return run

    def ping(self) -> None:
        """Ask the agents' loop for a sign of life; from any thread, not before the last one was answered or lost."""
        if self._loop is not None and self._answered_at >= self._asked_at:
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)

    @property
    def lag_seconds(self) -> float:
        """How long the agents' loop took to answer the last ping, or has not answered the current one."""
        if self._answered_at < self._asked_at:
            return time.monotonic() - self._asked_at
        return self._lag_seconds

    def close(self) -> None:
        """Stop the agents' loop. Agents that still run on it are abandoned."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._lag_seconds = self._answered_at - self._asked_at

    def _agents_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._serve, args=(self._loop,), name="agents", daemon=True).start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while self._loop is loop:
            try:
                loop.run_forever()
            except BaseException:
                # SystemExit in a task that an agent made comes out of the loop itself
                logger.exception("a task of an agent tried to end the process; all agents go on")
