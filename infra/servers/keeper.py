"""Keeps engines running in one process: starts them, tells where they are, starts a dead node again, ends them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from agl_stream.infra.servers.engine import Engine
from agl_stream.infra.servers.identity import ProcessIdentity
from agl_stream.infra.servers.process import ServerFailed, ServerProcess
from agl_stream.infra.servers.records import EngineFolder, Record
from agl_stream.supervise import RestartPolicy

_LOOK_SECONDS = 0.2
_BOUND_LOGS_SECONDS = 60.0


class Keeper:
    """Engines of one data folder, from `start` to `stop`; use it as a context manager.

    `make` gets the records of the engines that this keeper started before, and makes the next one.
    """

    def __init__(self, *, background: bool, notify: Callable[[str], None]) -> None:
        self._background = background
        self._notify = notify
        self._held = ExitStack()
        self._engines: dict[str, tuple[EngineFolder, Engine]] = {}
        self._deaths: dict[str, deque[float]] = {}
        self._policy = RestartPolicy()
        self._logs_bounded_at = 0.0

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self, folder: EngineFolder, make: Callable[[Mapping[str, Record]], Engine], cancelled: threading.Event
    ) -> Record:
        """Take `folder`, start the engine that `make` makes (given the records of those started before) and wait until
        it serves.

        Raises FolderNotWritable when another process keeps it, Cancelled, and what the start of an engine raises.
        """
        self._held.enter_context(folder.held())
        engine = make(self.records())
        engine.cancelled = cancelled
        self._engines[folder.engine] = (folder, engine)
        engine.start()
        return self._record(folder, engine)

    def records(self) -> dict[str, Record]:
        """The engines started so far."""
        return {name: self._describe(folder, engine) for name, (folder, engine) in self._engines.items()}

    def watch(self, stop: threading.Event) -> None:
        """Start dead nodes again until `stop` is set. Raises ServerFailed when one dies too often."""
        while not stop.wait(_LOOK_SECONDS):
            for folder, engine in self._engines.values():
                dead = [node for node in engine.nodes if not node.running]
                for node in dead:
                    self._start_again(node, stop)
                if dead and not stop.is_set():
                    self._record(folder, engine)
            if time.monotonic() - self._logs_bounded_at > _BOUND_LOGS_SECONDS:
                self._logs_bounded_at = time.monotonic()
                for _, engine in self._engines.values():
                    for node in engine.nodes:
                        node.bound_log()

    def stop(self) -> None:
        """End all engines, last started first, and let go of their folders. Idempotent."""
        for name in reversed(list(self._engines)):
            _, engine = self._engines.pop(name)
            engine.stop()
        self._held.close()

    def _start_again(self, node: ServerProcess, stop: threading.Event) -> None:
        """Wait as the policy says, then start; ready or not, the next look goes on from there."""
        now = time.monotonic()
        deaths = self._deaths.setdefault(node.name, deque(maxlen=self._policy.max_deaths))
        deaths.append(now)
        delay = self._policy.delay_seconds(deaths)
        if delay is None:
            raise ServerFailed(f"{node.name} ended {len(deaths)} times within a minute: given up; see {node.log_path}")
        self._notify(f"{node.name} ended with {node.exit_status}; starting it again in {delay:g} s ({node.log_path})")
        if stop.wait(delay):
            return
        node.start()
        try:
            node.wait_ready(stop)
        except ServerFailed as failure:
            self._notify(str(failure))
            node.kill()
        else:
            self._notify(f"{node.name} is ready again (process {node.pid})")

    def _record(self, folder: EngineFolder, engine: Engine) -> Record:
        record = self._describe(folder, engine)
        folder.write(record)
        return record

    def _describe(self, folder: EngineFolder, engine: Engine) -> Record:
        keeper = ProcessIdentity.of(os.getpid())
        assert keeper is not None
        nodes = {node.name: ProcessIdentity.of(node.pid) for node in engine.nodes if node.pid is not None}
        return Record(
            engine=folder.engine,
            version=engine.version,
            address=engine.address,
            settings=engine.settings,
            keeper=keeper,
            nodes={name: identity for name, identity in nodes.items() if identity is not None},
            background=self._background,
        )
