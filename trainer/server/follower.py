"""Keeps a server on the newest version: follows the resources topic, verifies, swaps, acknowledges."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from agl_stream.consumers.runner.heartbeat import Heartbeat, process_stats
from agl_stream.errors import AglStreamError, EngineUnreachable
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.settings import Settings
from agl_stream.trainer.log_follower import LogFollower
from agl_stream.trainer.weights import WeightsUnusable, load_tensors, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

log = logging.getLogger(__name__)

Event = dict[str, Any]
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class Served(Protocol):
    """What the follower needs of an engine."""

    version: int
    completions: int
    completion_tokens: int

    @property
    def in_flight(self) -> int: ...

    async def swap(self, version: int, tensors: Mapping[str, torch.Tensor]) -> float: ...


class ResourcesFollower:
    """Runs in a thread of its own beside the engine's event loop.

    The newest version whose weights verify is served; one that does not verify is refused, named in the log and in
    the heartbeats (``stats.refused``), and the old one stays. Each swap is acknowledged at once by a heartbeat with
    role server, and so is a version that is announced again.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Served,
        loop: asyncio.AbstractEventLoop,
        *,
        resources_id: str,
        worker_id: str,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """``on_failure`` is called, on the follower's thread, when it has to give up."""
        self._settings = settings
        self._engine = engine
        self._loop = loop
        self._resources_id = resources_id
        self._worker_id = worker_id
        self._on_failure = on_failure
        self._producer = EventProducer(settings, name="server", linger_ms=0.0)
        self._started_at, self._started_at_us = time.monotonic(), now_us()
        self._refused: tuple[int, str] | None = None
        self._status = "busy"
        self._stopping = threading.Event()
        self._caught_up = threading.Event()
        self._heartbeat = Heartbeat(self._producer, self._beat, settings.heartbeat_seconds)
        self._thread = threading.Thread(target=self._run, name="resources-follower", daemon=True)

    def start(self) -> None:
        """Begins to follow; ``caught_up`` tells when the versions that were there have been looked at."""
        self._thread.start()

    def caught_up(self, timeout_seconds: float) -> bool:
        """Waits until the newest version known at the start is served."""
        return self._caught_up.wait(timeout_seconds)

    def stop(self) -> None:
        """Says goodbye with a last heartbeat and ends."""
        self._stopping.set()
        self._thread.join(timeout=10.0)
        self._status = "stopped"
        self._heartbeat.stop()
        try:
            self._producer.close(timeout_seconds=5.0)
        except (AglStreamError, TimeoutError) as error:
            log.warning("closing: %s", error)

    def _run(self) -> None:
        try:
            follower = self._connect()
            if follower is None:
                return
            with follower:
                self._offer([record.event for record in follower.read_to_end()])
                self._status = "idle"
                self._heartbeat.start()
                self._caught_up.set()
                while not self._stopping.is_set():
                    events = [record.event for record in follower.poll(_POLL_SECONDS)]
                    if events and self._offer(events):
                        self._heartbeat.beat_now()
        except Exception as error:
            log.exception("the resources follower ended")
            self._on_failure(error)

    def _connect(self) -> LogFollower | None:
        waited = 0.0
        while not self._stopping.is_set():
            try:
                return LogFollower(self._settings, ["resources"], self._producer, name="server", pass_over_lost=True)
            except EngineUnreachable as error:
                waited += self._settings.connect_timeout_seconds
                if waited > self._settings.delivery_timeout_seconds:
                    raise
                log.warning("%s; trying again", error)
                self._stopping.wait(_RETRY_SECONDS)
        return None

    def _offer(self, events: list[Event]) -> bool:
        """Loads the newest usable version among ``events``; whether there is something to acknowledge."""
        ours = [e for e in events if e["resources_id"] == self._resources_id and e["weights"] is not None]
        for event in sorted(ours, key=lambda e: e["version"], reverse=True):
            if event["version"] <= self._engine.version:
                return event["version"] == self._engine.version
            if self._load(event):
                return True
        return bool(ours)

    def _load(self, event: Event) -> bool:
        version = event["version"]
        started = time.perf_counter()
        try:
            tensors = load_tensors(verify(event["weights"]))
            swap = asyncio.run_coroutine_threadsafe(self._engine.swap(version, tensors), self._loop)
            held = swap.result()
        except (WeightsUnusable, OSError, ValueError) as error:
            self._refused = (version, str(error))
            log.error(
                "%s version %d is refused and version %d stays: %s",
                self._resources_id,
                version,
                self._engine.version,
                error,
            )
            return False
        if self._refused is not None and self._refused[0] <= version:
            self._refused = None
        log.info(
            "%s version %d is served (%.3f s, requests held for %.3f s)",
            self._resources_id,
            version,
            time.perf_counter() - started,
            held,
        )
        return True

    def _beat(self) -> Event:
        stats = json.loads(process_stats(self._started_at))
        stats |= {
            "completions": self._engine.completions,
            "completion_tokens": self._engine.completion_tokens,
            "in_flight": self._engine.in_flight,
        }
        if self._refused is not None:
            stats["refused"] = "version {}: {}".format(*self._refused)
        return {
            "worker_id": self._worker_id,
            "worker_instance": self._producer.identity["instance"],
            "role": "server",
            "status": self._status,
            "started_at_us": self._started_at_us,
            "interval_seconds": self._settings.heartbeat_seconds,
            "resources_id": self._resources_id,
            "resources_version": self._engine.version,
            "stats": json.dumps(stats),
        }
