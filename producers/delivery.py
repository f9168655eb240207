"""Bookkeeping of acknowledgements: who waits for which events, in threads and in event loops."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

from agl_stream.errors import DeliveryFailed

OnDelivery = Callable[[KafkaError | None, Any], None]

_REMEDIES = {
    KafkaError._MSG_TIMED_OUT: (
        "no acknowledgement in time: is the broker up (AGL_STREAM_BOOTSTRAP_SERVERS)? "
        "AGL_STREAM_DELIVERY_TIMEOUT_SECONDS says how long to wait"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic does not exist: run `agl-stream topics apply`",
    KafkaError._UNKNOWN_TOPIC: "the topic does not exist: run `agl-stream topics apply`",
    KafkaError._UNKNOWN_PARTITION: "the topic has fewer partitions: run `agl-stream topics apply`",
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "the broker takes smaller records than AGL_STREAM_MAX_RECORD_BYTES: lower it and "
        "AGL_STREAM_INLINE_LIMIT_BYTES, or raise the topic's max.message.bytes"
    ),
}


def describe(error: KafkaError, topic: str | None) -> str:
    """One line: the topic, what the client says, the remedy where one is known."""
    remedy = _REMEDIES.get(error.code())
    return f"{topic}: {error.str()} ({error.name()})" + (f"; {remedy}" if remedy else "")


class Flight:
    """Events that are waited for together: how many are still unacknowledged, how many failed, and why first.

    ``landed`` may be called from any thread.
    """

    __slots__ = ("_changed", "failed", "first_failure", "pending")

    def __init__(self) -> None:
        self.pending = 0
        self.failed = 0
        self.first_failure = ""
        self._changed = threading.Condition()

    def board(self) -> None:
        """One more event is on its way."""
        with self._changed:
            self.pending += 1

    def landed(self, failure: str | None = None) -> None:
        """One event is acknowledged, or failed for the reason given."""
        with self._changed:
            self.pending -= 1
            if failure is not None:
                self.failed += 1
                self.first_failure = self.first_failure or failure
            if not self.pending:
                self._changed.notify_all()

    def wait(self, deadline: float) -> bool:
        """Block until nothing is pending; False when ``deadline`` (monotonic seconds) passes first."""
        with self._changed:
            while self.pending:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(min(remaining, 3600.0)):
                    return False
        return True

    def raise_failures(self) -> None:
        """Raise DeliveryFailed when an event failed."""
        if self.failed:
            raise DeliveryFailed(f"{self.failed} event(s) were not acknowledged; the first: {self.first_failure}")


class LoopBridge:
    """Settles futures of one event loop from another thread, many with a single wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # weak: bridges are kept in a map by loop, which must not keep a finished loop alive
        self._loop = weakref.ref(loop)
        self._settled: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._scheduled = False

    def post(self, future: asyncio.Future[Any], outcome: Any) -> None:
        """Hand ``outcome`` to ``future``: an exception is raised by it, anything else is its result."""
        self._settled.append((future, outcome))
        # append before the look: a drain that has reset the flag will still see this entry
        if not self._scheduled:
            self._scheduled = True
            loop = self._loop()
            if loop is None or loop.is_closed():
                # nobody can wait for these futures any more
                self._settled.clear()
                return
            try:
                loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # closed since the look
                self._settled.clear()

    def _drain(self) -> None:
        self._scheduled = False
        while self._settled:
            future, outcome = self._settled.popleft()
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
