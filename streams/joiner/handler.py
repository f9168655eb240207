"""The join fed from the log: what the batch consumer loop calls, with the state store and the clock at hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from agl_stream.consumers.batch_loop import BatchHandler, Partition, Record
from agl_stream.consumers.rejects import reject_event
from agl_stream.errors import SettingError
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.events import Event
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.streams.joiner.adapter import Adapter, Refused
from agl_stream.streams.joiner.core import Bounds, History, Joined, Joiner, ReadBack, Rejected
from agl_stream.streams.joiner.spans import view_of
from agl_stream.streams.joiner.writer import Outgoing
from agl_stream.streams.store import StateReader

CLOCK_SKEW_US = 5_000_000
"""How far the clocks of lifecycle and joiner may differ."""
_LOOK_SECONDS = 1.0
_FIRST_LOOK_SECONDS = 3.0
_LONGEST_LOOK_SECONDS = 300.0
_FORGET_SECONDS = 3600.0
_COMPLAIN_SECONDS = 30.0
_KNOWN_HOMES = 100_000

logger = logging.getLogger(__name__)


class Log(Protocol):
    """What the joiner asks of the log beyond its records; LogQuestions answers."""

    def end_offsets(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]: ...
    def committed_offsets(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]: ...
    def partition_count(self, topic: str) -> int: ...


class JoinerHandler(BatchHandler):
    """Handles spans and rollouts. ``write`` returns when all it is given is acknowledged."""

    def __init__(
        self,
        store: StateReader,
        log: Log,
        write: Callable[[list[Outgoing]], None],
        adapter: Adapter,
        *,
        bounds: Bounds | None = None,
        clock_us: Callable[[], int] = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._log = log
        self._write = write
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._joiner = Joiner(adapter, self._home, bounds)
        self._partitions = 0
        self._homes: dict[str, int] = {}
        self._outbox: list[Outgoing] = []
        self._outputs: list[Partition] = []
        self._horizons: dict[str, tuple[ReadBack, Mapping[Partition, int]]] = {}
        self._next_look = 0.0
        self._looks: dict[str, tuple[float, float]] = {}
        self._blocked_since: float | None = None
        self._complained = 0.0

    # the loop's calls

    def assigned(self, partitions: list[Partition]) -> Mapping[Partition, int]:
        self._partitions = self._log.partition_count("spans")
        if (rollouts := self._log.partition_count("rollouts")) != self._partitions:
            raise SettingError(
                f"topics spans and rollouts have {self._partitions} and {rollouts} partitions; the joiner needs equal "
                "numbers: make them anew with `agl-stream topics apply` in another AGL_STREAM_NAMESPACE"
            )
        self._homes.clear()
        spans = [partition for partition in partitions if partition.topic == "spans"]
        committed = self._log.committed_offsets(spans)
        self._outputs = [Partition("triplets", number) for number in range(self._log.partition_count("triplets"))]
        written = any(self._log.end_offsets(self._outputs).values())
        for partition in spans:
            # the first joiner of all reads a partition from its beginning and can have missed nothing
            first = partition not in committed and not written
            self._joiner.assign(partition.number, 0 if first else self._clock_us() + CLOCK_SKEW_US)
        return {}

    def revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        self._outbox.clear()
        for partition in partitions:
            if partition.topic == "spans":
                self._joiner.drop(partition.number)

    def handle(self, records: list[Record]) -> None:
        on_span, on_rollout, homes = self._joiner.on_span, self._joiner.on_rollout, self._homes
        positions: dict[int, int] = {}
        for record in records:
            if record.topic == "rollouts":
                on_rollout(record.partition, record.offset, record.event)
                continue
            positions[record.partition] = record.offset + 1
            rollout_id = record.event["rollout_id"]
            home = homes.get(rollout_id)
            if home is None:
                home = self._home(rollout_id)
            if home == record.partition:
                on_span(record.partition, record.offset, record.event)
            else:
                self._outbox.append(Outgoing("spans", record.event, home, source=record))
        for number, position in positions.items():
            self._joiner.on_position(number, position)
        self._advance()

    def reached_end(self, ends: list[tuple[Partition, int]]) -> None:
        for partition, offset in ends:
            if partition.topic == "spans":
                self._joiner.on_position(partition.number, offset)
        self._advance()

    def idle(self) -> None:
        now = self._monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._look_for_ends(now)
        self._advance()

    def commit_floors(self) -> Iterable[tuple[Partition, int]]:
        return [(Partition(topic, number), offset) for topic, number, offset in self._joiner.floors()]

    # inside

    def _home(self, rollout_id: str) -> int:
        home = self._homes.get(rollout_id)
        if home is None:
            if len(self._homes) >= _KNOWN_HOMES:
                self._homes.clear()
            home = self._homes[rollout_id] = murmur2_partition(rollout_id.encode(), self._partitions)
        return home

    def _advance(self) -> None:
        self._empty_outbox()
        joiner = self._joiner
        waiting = [Partition("spans", number) for number in joiner.partitions_without_barrier()]
        if waiting:
            for partition, end in self._log.end_offsets(waiting).items():
                joiner.on_end_offset(partition.number, end)
        joiner.settle()
        wanted = joiner.read_backs()
        if wanted:
            self._read_back(wanted)
        for output in joiner.take_outputs():
            if isinstance(output, Joined):
                self._outbox.append(Outgoing("triplets", output.event))
            else:
                self._outbox.append(Outgoing("rejects", _reject(output)))
        self._empty_outbox()

    def _empty_outbox(self) -> None:
        if self._outbox:
            # kept until written: the loop calls again with the same records, which then change nothing
            self._write(self._outbox)
            self._outbox = []

    def _read_back(self, wanted: list[ReadBack]) -> None:
        applied = self._store.applied_offsets()
        horizons = self._history_horizons(wanted)
        blocked = 0
        for want in wanted:
            written = horizons[want.rollout_id][1] if want.history else {}
            behind = any(applied.get(partition, 0) < end for partition, end in written.items())
            if behind or applied.get(("spans", want.partition), 0) < want.offset:
                blocked += 1
                continue
            found = self._store.get_spans(want.rollout_id, want.attempt_id)
            spans = [
                (event["span_id"], view_of(event, event["source_partition"], event["source_offset"])) for event in found
            ]
            last = self._store.get_triplets(want.rollout_id) if want.history else None
            history = None if last is None else History(last["revision"], last["content_hash"])
            self._joiner.on_read_back(want, spans, history)
        self._complain_when_blocked(blocked)

    def _history_horizons(self, wanted: list[ReadBack]) -> dict[str, tuple[ReadBack, Mapping[Partition, int]]]:
        """How far the store must be to know all that was ever written for a rollout: the ends of the triplets topic
        at the time its history was first wanted."""
        known = self._horizons
        historic = [want for want in wanted if want.history]
        kept = {w.rollout_id: known[w.rollout_id] for w in historic if known.get(w.rollout_id, (None,))[0] is w}
        if len(kept) < len(historic):
            now = self._log.end_offsets(self._outputs)
            for want in historic:
                kept.setdefault(want.rollout_id, (want, now))
        self._horizons = kept
        return kept

    def _complain_when_blocked(self, blocked: int) -> None:
        now = self._monotonic()
        if not blocked:
            self._blocked_since = None
            return
        self._blocked_since = self._blocked_since or now
        if now - max(self._blocked_since, self._complained) > _COMPLAIN_SECONDS:
            self._complained = now
            logger.warning(
                "%d rollouts wait for the state store to catch up with the log before they can be joined; "
                "is the sink running? See `agl-stream status`",
                blocked,
            )

    def _look_for_ends(self, now: float) -> None:
        """Ask the store about rollouts that have been open for long: their end may lie before this joiner's time.

        One that the store does not know after an hour is forgotten, so that it does not hold back the commits.
        """
        open_ids = list(self._joiner.unended())
        looks = {i: self._looks.get(i) or (now, now + _FIRST_LOOK_SECONDS) for i in open_ids}
        due = [i for i, (_, next_look) in looks.items() if next_look <= now]
        if due:
            known = self._store.get_rollouts(due)
            for rollout_id in due:
                since, _ = looks[rollout_id]
                age = now - since
                looks[rollout_id] = (since, now + min(age, _LONGEST_LOOK_SECONDS))
                if rollout_id in known:
                    self._joiner.on_known_rollout(known[rollout_id])
                elif age > _FORGET_SECONDS:
                    logger.warning("spans of rollout %s, which nobody requested, are no longer waited for", rollout_id)
                    self._joiner.forget(rollout_id, self._clock_us() + CLOCK_SKEW_US)
        self._looks = looks


class _SpanSource(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


def _reject(output: Rejected) -> Event:
    refused: Refused = output.refused
    span = refused.span
    source = _SpanSource("spans", span.partition, span.offset, output.rollout_id.encode(), b"")
    event = reject_event(
        source,
        refused.reason_code,
        refused.detail,
        rejected_by="joiner",
        rollout_id=output.rollout_id,
        attempt_id=output.attempt_id,
    )
    # the record itself was sound and stays where it is
    return {**event, "payload": None}
