"""Starts processes in order, restarts the dead, stops all in reverse order."""

from __future__ import annotations

import heapq
import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agl_stream.errors import AglStreamError
from agl_stream.supervise.bounded_log import BoundedLog
from agl_stream.supervise.child import Child, ProcessSpec
from agl_stream.supervise.restart_policy import RestartPolicy
from agl_stream.supervise.usage import ProcessUsage

log = logging.getLogger(__name__)

_SAMPLE_SECONDS = 1.0


class ProcessFailed(AglStreamError):
    """A supervised process did not start, or died so often that it was given up."""


@dataclass
class _Managed:
    """A process over all its incarnations. Changed only by the keeper thread, under the lock."""

    spec: ProcessSpec
    log: BoundedLog
    child: Child | None = None
    was_ready: bool = False
    ready: bool = False
    completed: bool = False
    failure: str | None = None
    death_count: int = 0
    recent_deaths: deque[float] = field(default_factory=deque[float])
    past_usage: ProcessUsage = field(default_factory=ProcessUsage)
    ready_deadline: float | None = None


class Supervisor:
    """Owns child processes from `start` to `stop`; use it as a context manager.

    All children are spawned by one thread that lives until `stop` returns, so that they can ask the
    kernel to end them with this process (`orphan.die_with_parent`).

    `notify` gets one line for each death, restart and give-up; it is called from the keeper thread.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        policy: RestartPolicy | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._log_dir = log_dir
        self._policy = policy or RestartPolicy()
        self._notify = notify
        self._managed: dict[str, _Managed] = {}
        self._start_order: list[list[str]] = []
        self._changed = threading.Condition()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._due: list[tuple[float, str]] = []
        self._notes: list[str] = []
        self._stopping = False
        self._keeper = threading.Thread(target=self._keep, name="supervisor", daemon=True)
        self._keeper.start()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *specs: ProcessSpec, cancelled: threading.Event | None = None) -> None:
        """`spawn` and `wait_ready`."""
        self.spawn(*specs)
        self.wait_ready(cancelled)

    def spawn(self, *specs: ProcessSpec) -> None:
        """Start all of `specs` at once, without waiting. They stop together, before those spawned earlier."""
        names = [spec.name for spec in specs]
        with self._changed:
            for spec in specs:
                if spec.name in self._managed:
                    raise ValueError(f"a process named {spec.name} is already supervised")
                self._managed[spec.name] = _Managed(spec, BoundedLog(self._log_dir / f"{spec.name}.log"))
            self._start_order.append(names)
        for name in names:
            self._inbox.put(lambda name=name: self._spawn(name))

    def wait_ready(self, cancelled: threading.Event | None = None) -> None:
        """Wait until each process has been ready once.

        Raises ProcessFailed with the process's last lines when one ends or stays silent before it was
        ever ready (that is a wrong set-up, which a restart does not cure). Returns early, with
        processes not yet ready, when `cancelled` is set.
        """
        with self._changed:
            while not all(managed.was_ready or managed.completed for managed in self._managed.values()):
                if cancelled is not None and cancelled.is_set():
                    return
                self._raise_failure()
                self._changed.wait(0.1)

    def check(self) -> None:
        """Raise ProcessFailed if a process was given up."""
        with self._changed:
            self._raise_failure()

    def wait_completed(self, name: str, timeout_seconds: float) -> bool:
        """Whether the process `name` (declared with `ends`) exited with 0 within the time.

        Raises ProcessFailed as soon as any process was given up.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._managed[name].completed:
                self._raise_failure()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def ready_line(self, name: str) -> str | None:
        """What the running incarnation printed when it became ready."""
        with self._changed:
            child = self._managed[name].child
            return child.ready_line if child else None

    def pids(self) -> dict[str, int]:
        """Process ids of those running now."""
        with self._changed:
            return {name: m.child.pid for name, m in self._managed.items() if m.child is not None}

    def restarts(self) -> dict[str, int]:
        """Deaths so far of each process (each was followed by a restart, unless it was given up)."""
        with self._changed:
            return {name: m.death_count for name, m in self._managed.items()}

    def usage(self) -> dict[str, ProcessUsage]:
        """Resources used by each process, summed over its incarnations; also after `stop`."""
        with self._changed:
            return {
                name: m.past_usage.plus(m.child.usage()) if m.child else m.past_usage
                for name, m in self._managed.items()
            }

    def stop(self) -> None:
        """End every process, last started first: SIGTERM, then SIGKILL after its stop timeout. Idempotent."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
        for names in reversed(self._start_order):
            with self._changed:
                children = [m.child for n in names if (m := self._managed[n]).child is not None]
            started = time.monotonic()
            for child in children:
                child.signal(signal.SIGTERM)
            for child in children:
                if not child.wait_gone(child.spec.stop_timeout_seconds):
                    self._notify(f"{child.spec.name} did not stop in {child.spec.stop_timeout_seconds:g} s: killed")
                    child.signal(signal.SIGKILL)
                    child.wait_gone(child.spec.stop_timeout_seconds)
                log.info("%s stopped after %.2f s", child.spec.name, time.monotonic() - started)
        self._inbox.put(self._quit)
        self._keeper.join()
        for managed in self._managed.values():
            managed.log.close()

    # The keeper thread: everything below runs in it alone.

    def _keep(self) -> None:
        self._running = True
        while self._running:
            try:
                self._inbox.get(timeout=self._seconds_to_next_deadline())()
            except queue.Empty:
                self._sample_usage()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._spawn(heapq.heappop(self._due)[1])
            self._kill_silent(now)
            # Told here and not where it happens, so that `notify` never runs under the lock.
            for note in self._notes:
                self._notify(note)
            self._notes.clear()

    def _seconds_to_next_deadline(self) -> float:
        now = time.monotonic()
        deadlines = [m.ready_deadline for m in self._managed.values() if m.ready_deadline is not None]
        if self._due:
            deadlines.append(self._due[0][0])
        return max(0.0, min([now + _SAMPLE_SECONDS, *deadlines]) - now)

    def _sample_usage(self) -> None:
        for managed in self._managed.values():
            if managed.child is not None:
                managed.child.usage()

    def _quit(self) -> None:
        self._running = False

    def _spawn(self, name: str) -> None:
        managed = self._managed[name]
        with self._changed:
            if self._stopping:
                return
            try:
                child = Child(managed.spec, managed.log, on_ready=self._tell_ready, on_exit=self._tell_exit)
            except OSError as error:
                managed.failure = f"{name} cannot be started ({managed.spec.argv[0]}): {error}"
                self._changed.notify_all()
                return
            managed.child = child
            if managed.spec.ready_timeout_seconds is None:
                managed.ready = managed.was_ready = True
            else:
                managed.ready_deadline = time.monotonic() + managed.spec.ready_timeout_seconds
            self._changed.notify_all()

    def _tell_ready(self, child: Child) -> None:
        self._inbox.put(lambda: self._became_ready(child))

    def _tell_exit(self, child: Child) -> None:
        self._inbox.put(lambda: self._ended(child))

    def _became_ready(self, child: Child) -> None:
        with self._changed:
            managed = self._managed[child.spec.name]
            managed.ready_deadline = None
            if managed.was_ready:
                self._notes.append(f"{child.spec.name} is ready again (process {child.pid})")
            managed.ready = managed.was_ready = True
            self._changed.notify_all()

    def _ended(self, child: Child) -> None:
        name = child.spec.name
        with self._changed:
            managed = self._managed[name]
            managed.past_usage = managed.past_usage.plus(child.usage())
            managed.child, managed.ready, managed.ready_deadline = None, False, None
            if self._stopping:
                return
            if child.exit_status == 0 and child.spec.ends:
                managed.completed = True
            else:
                self._bury(name, managed, child)
            self._changed.notify_all()

    def _bury(self, name: str, managed: _Managed, child: Child) -> None:
        now = time.monotonic()
        managed.death_count += 1
        managed.recent_deaths.append(now)
        while len(managed.recent_deaths) > self._policy.max_deaths:
            managed.recent_deaths.popleft()
        how = _how_it_ended(child)
        if not managed.was_ready:
            managed.failure = f"{name} {how} before it was ready" + self._last_lines(managed)
            return
        delay = self._policy.delay_seconds(managed.recent_deaths)
        if delay is None and child.exit_status == child.spec.waits_with:
            delay = self._policy.max_delay_seconds
        if delay is None:
            managed.failure = f"{name} {how}, {managed.death_count} times by now: given up" + self._last_lines(managed)
            self._notes.append(managed.failure)
            return
        self._notes.append(f"{name} {how}; starting it again in {delay:g} s (log: {managed.log.path})")
        heapq.heappush(self._due, (now + delay, name))

    def _kill_silent(self, now: float) -> None:
        for managed in self._managed.values():
            if managed.child and managed.ready_deadline is not None and managed.ready_deadline <= now:
                managed.ready_deadline = None
                managed.log.write(b"(killed: not ready within %g s)" % (managed.spec.ready_timeout_seconds or 0.0))
                managed.child.signal(signal.SIGKILL)

    def _last_lines(self, managed: _Managed) -> str:
        lines = "".join(f"\n    {line}" for line in managed.log.tail())
        return f"; its last lines ({managed.log.path}):{lines}" if lines else f" (log: {managed.log.path})"

    def _raise_failure(self) -> None:
        for managed in self._managed.values():
            if managed.failure is not None:
                raise ProcessFailed(managed.failure)


def _how_it_ended(child: Child) -> str:
    status = child.exit_status or 0
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
