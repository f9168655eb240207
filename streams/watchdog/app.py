"""The watchdog's loop: reads the log to its end, looks at the clock, says what is due.

Any number of watchdogs may run at once. One that cannot see the end of the log judges nobody, and afterwards gives
every attempt a full period of silence again: its own blindness is no sign of anybody's death.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from agl_stream import connections
from agl_stream.errors import AglStreamError, DecodeError, EngineUnreachable
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.settings import Settings
from agl_stream.streams.group_offsets import GroupOffsets
from agl_stream.streams.log_tail import LogTail
from agl_stream.streams.store import Condition, Query, StateStore, open_store
from agl_stream.streams.store.waiting import Stopped, until_it_answers
from agl_stream.streams.watchdog.core import Due, Limits, Sight, Suspicions, judge
from agl_stream.streams.watchdog.view import View

logger = logging.getLogger(__name__)

OPEN_STATUSES = ("queuing", "preparing", "running", "requeuing")
OPEN_NOW = Query(conditions=(Condition("status", within=OPEN_STATUSES),))
_SETTLE_US = 5_000_000
_SAY_AGAIN_SECONDS = 30.0
_PATIENCE_SECONDS = 2.0
_FLUSH_SECONDS = 10.0
_PRUNE_SECONDS = 60.0


def run_watchdog(settings: Settings, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
    """Run until ``stop`` is set; ``ready`` is called once the log has been read to its end.

    Blocks. Raises EngineUnreachable when broker or registry are missing at the start; later it waits for them, and
    for the state store always.
    """
    with ExitStack() as stack, suppress(Stopped):
        codec = Codec(connections.registry_client(settings))
        producer = EventProducer(settings, name="watchdog", codec=codec)
        stack.callback(_close_quietly, producer)
        store = until_it_answers(lambda: open_store(settings, read_only=True), stop, "watchdog")
        stack.callback(store.close)
        watchdog = Watchdog(settings, codec=codec, producer=producer, store=store)
        stack.callback(watchdog.close)
        # offsets before rows: a row may be newer than its offset, which does no harm, but not older
        applied = until_it_answers(store.applied_offsets, stop, "watchdog")
        open_now = until_it_answers(lambda: store.query_rollouts(OPEN_NOW), stop, "watchdog")
        watchdog.start(applied, open_now)
        if ready is not None:
            ready()
        while not stop.wait(settings.watchdog_interval_seconds):
            watchdog.look()


class Watchdog:
    """One look at a time, on one thread."""

    def __init__(self, settings: Settings, *, codec: Codec, producer: EventProducer, store: StateStore) -> None:
        self._settings = settings
        self._codec = codec
        self._producer = producer
        self._store = store
        self._view = View()
        self._limits = Limits(
            claim_lease_us=int(settings.claim_lease_seconds * 1e6),
            worker_lost_us=int(settings.worker_lost_seconds * 1e6),
        )
        self._suspicions = Suspicions()
        self._said: dict[str, float] = {}
        self._seeing_since_us: int | None = None
        self._next_prune = 0.0
        self._dispatch_partitions: list[int] = []
        self._runners = GroupOffsets(settings, settings.group("runners"))
        self._tails = {
            name: LogTail(settings, settings.topic(name), name=f"watchdog-{name}")
            for name in ("rollouts", "workers", "dispatch")
        }
        self._take = {"rollouts": self._take_rollout, "workers": self._take_heartbeat, "dispatch": self._take_offer}

    def start(self, applied: Mapping[tuple[str, int], int], open_now: Iterable[Event]) -> None:
        """Take up what is open: rollouts from the state store (its applied offsets and the rows then open) and on from
        there, heartbeats from now on, offers from where the runners are (what they have passed is known to have been
        offered). Raises EngineUnreachable when the broker does not answer."""
        now = now_us()
        tails = self._tails
        for event in open_now:
            self._view.rollout_changed(event, seen_at_us=now, sent_at_us=now)
        tails["rollouts"].follow({n: applied.get(("rollouts", n), 0) for n in tails["rollouts"].partitions()})
        tails["workers"].follow(tails["workers"].ends(tails["workers"].partitions()))
        self._dispatch_partitions = tails["dispatch"].partitions()
        tails["dispatch"].follow(self._consumed())
        self._read()

    def look(self) -> None:
        """Read on, judge, say what is due. Waits out engines that are away; the next look sees to the rest."""
        try:
            self._read()
        except EngineUnreachable as error:
            if self._seeing_since_us is not None:
                logger.warning("the watchdog is blind and judges nobody: %s", error)
            self._seeing_since_us = None
            return
        now = now_us()
        if self._seeing_since_us is None:
            self._seeing_since_us = now
        sight = Sight(self._seeing_since_us, settled=now - self._seeing_since_us >= _SETTLE_US)
        try:
            due = judge(
                self._view,
                now,
                sight=sight,
                limits=self._limits,
                suspicions=self._suspicions,
                last_activity=self._store.last_activity,
                consumed=self._consumed,
            )
            self._say(due)
        except (AglStreamError, TimeoutError) as error:
            logger.warning("what is due will be said later: %s", error)
        if time.monotonic() > self._next_prune:
            self._next_prune = time.monotonic() + _PRUNE_SECONDS
            self._view.prune(now)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._runners.close()

    def _read(self) -> None:
        for name, tail in self._tails.items():
            tail.read_to_end(self._take[name], _PATIENCE_SECONDS)

    def _say(self, due: list[Due]) -> None:
        """Send what has not been said lately. A thing said stays due until the state shows it, and is said again
        after a while in case it was lost."""
        now = time.monotonic()
        self._said = {name: at for name, at in self._said.items() if now - at < _SAY_AGAIN_SECONDS}
        fresh = [entry for entry in due if entry.event["event_id"] not in self._said]
        if not fresh:
            return
        for topic, event in fresh:
            logger.info("%s of %s: %s", event.get("reason_code") or event.get("reason"), event["rollout_id"], topic)
            self._producer.send(topic, event)
        self._producer.flush(_FLUSH_SECONDS)
        self._said.update((event["event_id"], now) for _, event in fresh)

    def _consumed(self) -> dict[int, int]:
        topic = self._settings.topic("dispatch")
        places = [(topic, number) for number in self._dispatch_partitions]
        return {number: offset for (_, number), (offset, _) in self._runners.ask(places).items()}

    def _decode(self, message: Any, event_type: str) -> dict[str, Any] | None:
        """The event; None for what is somebody else's to reject."""
        if message.value() is None:
            return None
        try:
            found, event = self._codec.decode(message.value(), message.headers())
        except DecodeError as error:
            logger.debug("%s offset %d is skipped: %s", message.topic(), message.offset(), error)
            return None
        return event if found == event_type else None

    def _take_rollout(self, message: Any) -> None:
        event = self._decode(message, "RolloutStateChanged")
        if event is not None:
            self._view.rollout_changed(event, seen_at_us=now_us(), sent_at_us=message.timestamp()[1] * 1000)

    def _take_heartbeat(self, message: Any) -> None:
        event = self._decode(message, "WorkerHeartbeat")
        if event is not None:
            self._view.heartbeat(event, seen_at_us=now_us())

    def _take_offer(self, message: Any) -> None:
        event = self._decode(message, "AttemptDispatched")
        if event is not None:
            self._view.offered(event, partition=message.partition(), offset=message.offset(), seen_at_us=now_us())


def _close_quietly(producer: EventProducer) -> None:
    """What could not be delivered is due again for the next watchdog."""
    try:
        producer.close()
    except (AglStreamError, TimeoutError) as error:
        logger.warning("the watchdog leaves events undelivered: %s", error)
