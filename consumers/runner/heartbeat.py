"""The runner's sign of life, from a thread of its own.

A beat names the attempts that are held, and naming an attempt keeps it alive. So an attempt is named only while its
agent's code still runs, and an async one only while the agents' loop answers: an agent that blocks the loop looks
silent (``unresponsive_seconds``), as it is. A sync agent in its thread cannot be told from a hung one; only
``timeout_seconds`` bounds it.
"""

from __future__ import annotations

import json
import logging
import resource
import threading
import time
from collections.abc import Callable

from agl_stream.errors import AglStreamError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.events import Event

logger = logging.getLogger(__name__)


class Heartbeat:
    """Calls ``snapshot`` every ``interval_seconds`` and sends what it gives; ``snapshot`` must be thread-safe."""

    def __init__(self, producer: EventProducer, snapshot: Callable[[], Event], interval_seconds: float) -> None:
        self._producer = producer
        self._snapshot = snapshot
        self._interval_seconds = interval_seconds
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Send the next beat at once, when something changed that others wait for."""
        self._wake.set()

    def stop(self) -> None:
        """Send a last beat and end; the producer's flush makes it durable."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._interval_seconds)

    def _beat_on(self) -> None:
        while True:
            try:
                self._producer.send("workers", self._snapshot())
            except AglStreamError as error:
                logger.warning("a heartbeat could not be sent: %s", error)
            if self._stopping:
                return
            self._wake.wait(self._interval_seconds)
            self._wake.clear()


def process_stats(started_at: float, **more: float) -> str:
    """JSON object for a heartbeat's ``stats``: CPU and memory of this process, and what the caller adds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return json.dumps(
        {
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
            "rss_max_bytes": usage.ru_maxrss * 1024,
            "uptime_seconds": round(time.monotonic() - started_at, 3),
            **more,
        }
    )
