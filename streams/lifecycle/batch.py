"""A batch of raw records through the fold: what is to be written, in which order. No framework, no network.

The order in which its outcome becomes durable makes decisions final. First the states (the table's changelog), then
the effects, then the offsets of the records. A crash before the states: nothing was decided. After the states: the
records come again, are recognised by their offsets (``applied``), and their effects are made again with the same
ids. So a decision that anybody has seen is never taken differently the second time, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from agl_stream.errors import DecodeError, TooManyRejects
from agl_stream.schemas.codec import Headers
from agl_stream.schemas.events import Event
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.dispatch import Dispatcher
from agl_stream.streams.lifecycle.attempt import AttemptFacts
from agl_stream.streams.lifecycle.effects import Effect, Source, rejected
from agl_stream.streams.lifecycle.fold import complete, fold
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, announcement, is_offered, offer, offer_number

INPUTS = ("rollout-requests", "controls", "attempts")
_EVENT_OF = {name: TOPICS[name].event for name in INPUTS}

Decode = Callable[[bytes | None, Headers], tuple[str, Event]]


class Incoming(NamedTuple):
    """A record as it was read."""

    source: Source
    headers: Headers = None


class States(Protocol):
    """The table, for reading."""

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        """The state of a rollout whose home is ``partition``."""
        ...


class Known(Protocol):
    """What the fold has to ask about the rest of the system."""

    @property
    def resources(self) -> ResourceView:
        """Resources published so far. Called when a batch has new requests, and as fresh as that needs: whatever
        was acknowledged before a request was sent is in it."""
        ...

    def ended(self, rollout_ids: Iterable[str]) -> set[str]:
        """Those of ``rollout_ids`` that have ended and left the table."""
        ...


@dataclass
class Writes:
    """The outcome of a batch. ``states`` and ``effects`` become durable in this order."""

    states: dict[str, tuple[int, RolloutState]] = field(default_factory=dict)
    """rollout_id -> (home partition, state)."""
    effects: list[Effect] = field(default_factory=list)
    flood: TooManyRejects | None = None
    """Set when rejects flood a partition: to be raised once everything here is durable."""


class BatchFold:
    """Applies the fold to batches. Keeps nothing but the dispatcher's turn and the count of rejects in a row."""

    def __init__(
        self,
        decode: Decode,
        dispatcher: Dispatcher,
        known: Known,
        *,
        partitions: int,
        reject_limit: int = 1000,
    ) -> None:
        self._decode = decode
        self._dispatcher = dispatcher
        self._known = known
        self._partitions = partitions
        self._reject_limit = reject_limit
        self._rejects_in_a_row: dict[tuple[str, int], int] = {}

    def apply(self, records: Iterable[Incoming], states: States) -> Writes:
        """Fold ``records`` in order. ``states`` is not changed."""
        writes = Writes()
        at_home: list[tuple[str, Event, Source]] = []
        for record in records:
            event_type, event = self._read(record, writes)
            if event is None:
                continue
            home = murmur2_partition(event["rollout_id"].encode(), self._partitions)
            if home == record.source.partition:
                at_home.append((event_type, event, record.source))
            else:
                # a foreign writer's partitioner: handled where the rollout's other events are
                writes.effects.append(Effect(record.source.topic, event, home))
        self._fold(at_home, states, writes)
        return writes

    def _read(self, record: Incoming, writes: Writes) -> tuple[str, Event | None]:
        source = record.source
        place = (source.topic, source.partition)
        try:
            event_type, event = self._decode(source.value, record.headers)
            problem = None if event_type == _EVENT_OF[source.topic] else "wrong_event"
            detail = f"{event_type} on {source.topic}, which carries {_EVENT_OF[source.topic]}"
        except DecodeError as error:
            event_type, event, problem, detail = "", None, error.reason_code, str(error)
        if problem is None and event is not None:
            event = complete(event_type, event, source)
            if event["rollout_id"]:
                self._rejects_in_a_row.pop(place, None)
                return event_type, event
            problem, detail = "unknown_rollout", "the event names no rollout"
        assert problem is not None
        writes.effects.append(rejected(source, problem, detail, at_us=source.at_us))
        count = self._rejects_in_a_row[place] = self._rejects_in_a_row.get(place, 0) + 1
        if count >= self._reject_limit:
            writes.flood = TooManyRejects(
                f"the lifecycle stopped: {count} records in a row of {source.topic} partition {source.partition} were "
                f"rejected, the last at offset {source.offset} as {problem} ({detail[:200]}). Correct the writer, "
                f"look at `agl-stream tail rejects`, or raise AGL_STREAM_REJECT_LIMIT_CONSECUTIVE={self._reject_limit}"
            )
        return event_type, None

    def _fold(self, at_home: list[tuple[str, Event, Source]], states: States, writes: Writes) -> None:
        before: dict[str, RolloutState | None] = {}
        for _, event, source in at_home:
            rollout_id = event["rollout_id"]
            if rollout_id not in before:
                before[rollout_id] = states.get(rollout_id, source.partition)
        unknown = [rollout_id for rollout_id, state in before.items() if state is None]
        ended = self._known.ended(unknown) if unknown else set()
        # asked once per batch: a batch without new requests needs no fresh view
        resources = self._known.resources if self._has_requests(at_home, before, ended) else ResourceView()

        now = dict(before)
        read_again: set[str] = set()
        for event_type, event, source in at_home:
            rollout_id = event["rollout_id"]
            if rollout_id in ended:
                self._answer_late(event_type, event, source, writes)
                continue
            state = now[rollout_id]
            if state is not None and source.offset <= state["applied"].get(source.topic, -1):
                # the process died after it had kept the state and perhaps before it had told anybody
                read_again.add(rollout_id)
            after, effects = fold(state, event_type, event, source=source, resources=resources)
            writes.effects.extend(effect for effect in effects if effect.topic == "rejects")
            if after is not state and after is not None:
                now[rollout_id] = after
                writes.states[rollout_id] = (source.partition, after)
        for rollout_id in writes.states.keys() | read_again:
            self._tell(before[rollout_id], now[rollout_id], rollout_id in read_again, writes)

    def _tell(self, was: RolloutState | None, state: RolloutState | None, read_again: bool, writes: Writes) -> None:
        """One RolloutStateChanged per rollout and batch, since the greatest version is the truth; an offer that was
        made and withdrawn within the batch is not made at all."""
        if state is None or state["request"] is None:
            return
        if is_offered(state) and (read_again or was is None or offer_number(was) != offer_number(state)):
            if state["attempts"][-1]["dispatch_partition"] < 0:
                state["attempts"] = self._with_partition(state)
            writes.effects.append(Effect("dispatch", offer(state), state["attempts"][-1]["dispatch_partition"]))
        if read_again or was is None or was["version"] != state["version"]:
            writes.effects.append(Effect("rollouts", announcement(state)))

    def _with_partition(self, state: RolloutState) -> list[AttemptFacts]:
        """The attempts of a state made in this batch, which nobody else holds yet."""
        *older, latest = state["attempts"]
        return [*older, {**latest, "dispatch_partition": self._dispatcher.choose(offer(state))}]

    @staticmethod
    def _has_requests(
        at_home: list[tuple[str, Event, Source]], before: Mapping[str, RolloutState | None], ended: set[str]
    ) -> bool:
        for event_type, event, _ in at_home:
            if event_type == "ControlRequested" and event["action"] == "update":
                return True
            if event_type == "RolloutRequested" and event["rollout_id"] not in ended:
                state = before[event["rollout_id"]]
                if state is None or state["request"] is None:
                    return True
        return False

    @staticmethod
    def _answer_late(event_type: str, event: Event, source: Source, writes: Writes) -> None:
        """The same request again is the same rollout, which has ended: nothing to do, nothing wrong. Anything else
        comes too late to matter and is shown."""
        if event_type == "RolloutRequested":
            return
        writes.effects.append(
            rejected(
                source,
                "late_event",
                "the rollout ended and was closed",
                at_us=event["occurred_at_us"],
                rollout_id=event["rollout_id"],
                attempt_id=event.get("attempt_id"),
            )
        )
