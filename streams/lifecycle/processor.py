"""Makes batches durable: states to the changelog, then effects to their topics. Knows Kafka, not Faust."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from agl_stream.errors import AglStreamError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.dispatch import Dispatcher
from agl_stream.streams.lifecycle.batch import BatchFold, Incoming, Writes
from agl_stream.streams.lifecycle.effects import Effect, Source, rejected, rejected_held
from agl_stream.streams.lifecycle.ended import EndedRollouts
from agl_stream.streams.lifecycle.resource_reader import ResourceReader
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, dump_state, is_terminal

logger = logging.getLogger(__name__)

_STATE_MARGIN_BYTES = 65_536
_FORGET_AT_ONCE = 2_000
_LOOK_AGAIN_SECONDS = 10.0


class Outdated(AglStreamError):
    """A batch was folded by a process that no longer owns its partitions."""


class Table(Protocol):
    """The processor's table: states by rollout_id, each in its home partition."""

    def get(self, rollout_id: str, partition: int) -> RolloutState | None: ...

    def put(self, rollout_id: str, partition: int, state: RolloutState, encoded: bytes, offset: int) -> None:
        """Keep a state that stands in the changelog at ``offset``."""
        ...

    def forget(self, rollout_id: str, partition: int, offset: int) -> None:
        """Drop a state; its tombstone stands in the changelog at ``offset``."""
        ...

    def items(self) -> Iterable[tuple[str, int, RolloutState]]:
        """rollout_id, partition and state of everything in the partitions this process owns."""
        ...

    def owns(self, partition: int) -> bool: ...


class LifecycleProcessor:
    """One batch at a time, on one thread. ``handle`` may be given the same records again at any time."""

    def __init__(
        self,
        settings: Settings,
        *,
        table: Table,
        changelog_topic: str,
        partitions: int,
        producer: EventProducer,
        codec: Codec,
        dispatcher: Dispatcher,
        ended: EndedRollouts,
        resources: ResourceReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._table = table
        self._changelog_topic = changelog_topic
        self._producer = producer
        self._ended = ended
        self._resources = resources
        self._clock = clock
        self._largest_state = settings.max_record_bytes - _STATE_MARGIN_BYTES
        self._fold = BatchFold(
            codec.decode, dispatcher, self, partitions=partitions, reject_limit=settings.reject_limit_consecutive
        )
        # rollout_id -> (partition, when to look at it again), in the order of that time
        self._leaving: dict[str, tuple[int, float]] = {}

    # what the fold asks

    @property
    def resources(self) -> ResourceView:
        return self._resources.view()

    def ended(self, rollout_ids: Iterable[str]) -> set[str]:
        return self._ended.among(rollout_ids)

    # batches

    def handle(self, records: list[Incoming], still_ours: Callable[[], bool] = lambda: True) -> None:
        """Return once everything that follows from ``records`` is acknowledged by the log.

        Raises Outdated, with nothing written, when ``still_ours`` says at the last moment that the partitions went
        to somebody else. Raises TooManyRejects after writing, when rejects flood a partition; EngineUnreachable,
        DeliveryFailed, BufferFull or TimeoutError when an engine stays away: then the batch may be handled again.
        """
        writes = self._fold.apply(records, self._table)
        if not still_ours():
            raise Outdated("the partitions of this batch belong to another process now; it will fold them")
        self._write(writes)
        if writes.flood is not None:
            raise writes.flood

    def _write(self, writes: Writes) -> None:
        encoded = {rollout_id: dump_state(state) for rollout_id, (_, state) in writes.states.items()}
        for rollout_id in [key for key, value in encoded.items() if len(value) > self._largest_state]:
            self._refuse(rollout_id, writes)
            del encoded[rollout_id]
        offsets = self._write_changelog(
            [(rollout_id, partition, encoded[rollout_id]) for rollout_id, (partition, _) in writes.states.items()]
        )
        self._tell(writes.effects)
        for rollout_id, (partition, state) in writes.states.items():
            self._table.put(rollout_id, partition, state, encoded[rollout_id], offsets.get(partition, -1))
            self._note(rollout_id, partition, state)

    def _refuse(self, rollout_id: str, writes: Writes) -> None:
        """A state that would not fit a record: its rollout stays as it was, and the log says so."""
        partition, state = writes.states.pop(rollout_id)
        topic, offset = max(state["applied"].items(), key=lambda item: item[1])
        writes.effects[:] = [
            effect
            for effect in writes.effects
            if effect.topic not in ("rollouts", "dispatch") or effect.event["rollout_id"] != rollout_id
        ]
        writes.effects.append(
            rejected(
                Source(topic, partition, offset),
                "record_too_large",
                f"the state of {rollout_id} would be larger than {self._largest_state:,} bytes",
                at_us=state["changed_at_us"],
                rollout_id=rollout_id,
            )
        )

    def _write_changelog(self, entries: list[tuple[str, int, bytes | None]]) -> dict[int, int]:
        """Write and wait; the highest offset per partition."""
        if not entries:
            return {}
        offsets: dict[int, int] = {}
        lock = threading.Lock()

        def landed(error: object, message: object) -> None:
            if error is None:
                partition, offset = message.partition(), message.offset()  # type: ignore[attr-defined]
                with lock:
                    offsets[partition] = max(offset, offsets.get(partition, -1))

        for rollout_id, partition, value in entries:
            self._producer.send_bytes(
                self._changelog_topic, value, key=rollout_id, partition=partition, on_delivery=landed
            )
        self._producer.flush()
        return offsets

    def _tell(self, effects: list[Effect]) -> None:
        if not effects:
            return
        send = self._producer.send
        for topic, event, partition in effects:
            send(topic, event, partition=partition)
        self._producer.flush()

    # leaving the table

    def recovered(self) -> None:
        """The table was filled anew: take note of what is to leave it."""
        self._leaving.clear()
        for rollout_id, partition, state in self._table.items():
            self._note(rollout_id, partition, state)

    def _note(self, rollout_id: str, partition: int, state: RolloutState) -> None:
        if state["request"] is None:
            self._leaving[rollout_id] = (partition, self._clock() + self._settings.early_hold_seconds)
        elif not is_terminal(state):
            self._leaving.pop(rollout_id, None)
        elif rollout_id not in self._leaving:
            # counted from the end: what is learnt afterwards does not keep it
            self._leaving[rollout_id] = (partition, self._clock() + self._settings.closed_grace_seconds)

    def sweep(self) -> int:
        """Let go of rollouts whose time in the table is over; how many went. Call it now and then, from the thread
        that handles batches.

        An ended rollout goes once the state store shows its end. Events that were held for a rollout nobody
        requested, or for an attempt that never came, become rejects.
        """
        due = self._due()
        if not due:
            return 0
        states = {
            rollout_id: state
            for rollout_id, partition in due.items()
            if (state := self._table.get(rollout_id, partition)) is not None
        }
        shown = self._ended.shown(
            {key: state["version"] for key, state in states.items() if state["request"] is not None}
        )
        going = [key for key, state in states.items() if state["request"] is None or key in shown]
        effects = [_answer(states[key], held) for key in going for held in states[key]["held"]]
        self._tell(effects)
        offsets = self._write_changelog([(key, due[key], None) for key in going])
        for rollout_id in going:
            self._table.forget(rollout_id, due[rollout_id], offsets.get(due[rollout_id], -1))
        later = self._clock() + _LOOK_AGAIN_SECONDS
        for rollout_id in states.keys() - set(going):
            self._leaving[rollout_id] = (due[rollout_id], later)
        return len(going)

    def _due(self) -> dict[str, int]:
        now = self._clock()
        due: dict[str, int] = {}
        passed = []
        for rollout_id, (partition, at) in self._leaving.items():
            # in order of noting, and so nearly of time: both grace times are fixed
            if len(due) >= _FORGET_AT_ONCE:
                break
            if at <= now:
                passed.append(rollout_id)
                if self._table.owns(partition):
                    due[rollout_id] = partition
        for rollout_id in passed:
            del self._leaving[rollout_id]
        return due


def _answer(state: RolloutState, held: object) -> Effect:
    if state["request"] is None:
        return rejected_held(held, "unknown_rollout", "nobody requested this rollout")  # type: ignore[arg-type]
    return rejected_held(held, "unknown_attempt", "the rollout ended without such an attempt")  # type: ignore[arg-type]
