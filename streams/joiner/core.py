"""The join as a state machine. Pure: it is told what was read from the log and the store, and says what to write.

A rollout is *open* from its first span until it is joined, and *closed* from then on (remembered for a while).
Its terminal state asks for the end of its spans partition at that moment, the *barrier*: every span acknowledged
before the end of the rollout lies below it. Once the joiner's position has passed the barrier, the spans at hand
are all there are, and the rollout is joined. Where spans may have been missed the store is read back instead, up to
the same barrier: after a restart or rebalance, beyond the memory bound, and for what arrives late.

Commit floors hold back the offsets of everything that is open, so that another joiner reads it again. Whatever comes
twice changes nothing; the same rollout joined again has the same content hash and is not written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agl_stream.schemas.events import Event
from agl_stream.streams.joiner.adapter import Adapter, Refused
from agl_stream.streams.joiner.outcome import TERMINAL, Ending, ending_of, join
from agl_stream.streams.joiner.spans import SpanView, view_of

_ANY = 1 << 31
"""Above every attempt number."""


@dataclass(frozen=True)
class Bounds:
    """Memory. Beyond ``open_bytes`` the oldest open rollouts, beyond ``rollout_spans`` a single one, lose their
    buffered spans and are read back when they end. ``closed``: rollouts remembered for late spans.
    ``record_bytes``: the largest TripletsJoined the log takes; one that could be larger is joined without triplets."""

    open_bytes: int = 134_217_728
    rollout_spans: int = 10_000
    closed: int = 20_000
    record_bytes: int = 8_388_608


class Joined(NamedTuple):
    """Write this TripletsJoined."""

    event: Event


class Rejected(NamedTuple):
    """Write a reject for this span."""

    rollout_id: str
    attempt_id: str
    refused: Refused


Output = Joined | Rejected


class History(NamedTuple):
    """What was last written for a rollout."""

    revision: int
    content_hash: str


@dataclass(slots=True)
class ReadBack:
    """Spans of an attempt are wanted from the store, once it has applied spans ``partition`` up to ``offset``.
    ``history``: what was last written for the rollout is wanted, too, by whichever joiner it was."""

    rollout_id: str
    attempt_id: str
    partition: int
    offset: int
    history: bool


@dataclass(slots=True)
class _Open:
    home: int
    spans: dict[str, dict[str, SpanView | None]] = field(default_factory=dict)
    weight_bytes: int = 0
    count: int = 0
    told_to: int = 0
    dropped: bool = False
    ending: Ending | None = None
    from_store: bool = False
    history: History | None = None
    began_after: int = 0
    barrier: int | None = None
    reading: ReadBack | None = None


class _Closed(NamedTuple):
    ending: Ending
    history: History
    home: int
    seen_to: int
    others: bool


class Joiner:
    """``home``: rollout_id -> its partition of the spans topic. Not thread-safe."""

    def __init__(self, adapter: Adapter, home: Callable[[str], int], bounds: Bounds | None = None) -> None:
        self._adapter = adapter
        self._home = home
        self._bounds = bounds or Bounds()
        self._complete_from_us: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._open: dict[str, _Open] = {}
        self._closed: OrderedDict[str, _Closed] = OrderedDict()
        self._held: dict[tuple[str, int], dict[str, int]] = {}
        self._without_barrier: dict[int, set[str]] = {}
        self._at_barrier: dict[int, set[str]] = {}
        self._reading: dict[str, ReadBack] = {}
        self._outputs: list[Output] = []
        self._open_bytes = 0
        self.fenced_spans = 0
        self.late_spans = 0

    # partitions

    def assign(self, partition: int, complete_from_us: int) -> None:
        """Spans partition ``partition`` is read from now on. Of attempts dispatched at ``complete_from_us`` or later
        every span will be seen; of earlier ones some may have been before."""
        self._complete_from_us[partition] = complete_from_us

    def drop(self, partition: int) -> None:
        """The partition has another owner: forget all that lives there."""
        self._complete_from_us.pop(partition, None)
        self._positions.pop(partition, None)
        for rollout_id in [i for i, o in self._open.items() if o.home == partition]:
            self._remove(rollout_id)
        for rollout_id in [i for i, c in self._closed.items() if c.home == partition]:
            del self._closed[rollout_id]
        for topic in ("spans", "rollouts"):
            self._held.pop((topic, partition), None)

    # what was read

    def on_span(self, partition: int, offset: int, event: Event) -> None:
        """A span at its place on its home partition; in offset order within the partition."""
        rollout_id, attempt_id = event["rollout_id"], event["attempt_id"]
        opened = self._open.get(rollout_id)
        if opened is None:
            closed = self._closed.get(rollout_id)
            if closed is None:
                opened = self._open[rollout_id] = _Open(self._home(rollout_id))
            elif not self._is_news(closed, partition, offset, event):
                return
            else:
                opened = self._revive(rollout_id, closed)
                opened.ending = closed.ending
                self._want(rollout_id, opened, closed.ending, closed.seen_to)
        is_next, opened.told_to = offset >= opened.told_to, max(opened.told_to, offset + 1)
        if opened.dropped and opened.reading is None:
            if is_next:
                # what is held moves along: by one span another joiner knows that there is something to read back
                self._held["spans", partition].pop(rollout_id, None)
                self._hold("spans", partition, rollout_id, offset)
            return
        self._hold("spans", partition, rollout_id, offset)
        of_attempt = opened.spans.setdefault(attempt_id, {})
        if event["span_id"] in of_attempt:
            return
        view = of_attempt[event["span_id"]] = view_of(event, partition, offset)
        weight = 120 if view is None else view.weight_bytes
        opened.count += 1
        opened.weight_bytes += weight
        self._open_bytes += weight
        if opened.count > self._bounds.rollout_spans and opened.reading is None:
            self._drop_spans(rollout_id, opened)
        elif self._open_bytes > self._bounds.open_bytes:
            self._make_room()

    def on_rollout(self, partition: int, offset: int, event: Event) -> None:
        """A rollout's state at its place in the rollouts topic."""
        rollout_id = event["rollout_id"]
        if event["status"] in TERMINAL:
            if self._end(rollout_id, event, from_store=False):
                self._hold("rollouts", partition, rollout_id, offset)
        else:
            self._reopen(rollout_id, event["version"])

    def on_known_rollout(self, event: Event) -> None:
        """A rollout's state as the store has it: its terminal event was read before this joiner's time."""
        if event["status"] in TERMINAL and event["rollout_id"] in self._open:
            self._end(event["rollout_id"], event, from_store=True)

    def on_end_offset(self, partition: int, offset: int) -> None:
        """The end of a spans partition, asked for after everything told so far was read."""
        for rollout_id in self._without_barrier.pop(partition, ()):
            opened = self._open[rollout_id]
            opened.barrier = offset
            self._at_barrier.setdefault(partition, set()).add(rollout_id)

    def on_position(self, partition: int, next_offset: int) -> None:
        """Every span of the partition before ``next_offset`` has been told."""
        self._positions[partition] = max(next_offset, self._positions.get(partition, 0))

    def on_read_back(
        self, wanted: ReadBack, spans: Iterable[tuple[str, SpanView | None]], last: History | None
    ) -> None:
        """The store's answer: each span of the attempt as (span_id, view); ``last`` where history was wanted."""
        opened = self._open.get(wanted.rollout_id)
        if opened is None or opened.reading is not wanted:
            return
        buffered = opened.spans.get(wanted.attempt_id, {})
        opened.spans[wanted.attempt_id] = {**buffered, **dict(spans)}
        if wanted.history:
            opened.history = last
        self._close(wanted.rollout_id, opened, seen_to=wanted.offset)

    # what it wants

    def partitions_without_barrier(self) -> list[int]:
        """Spans partitions whose end is wanted (``on_end_offset``)."""
        return [partition for partition, waiting in self._without_barrier.items() if waiting]

    def settle(self) -> None:
        """Join what has passed its barrier, or ask for what is missing."""
        for partition, waiting in self._at_barrier.items():
            position = self._positions.get(partition, -1)
            for rollout_id in list(waiting):
                opened = self._open[rollout_id]
                assert opened.ending is not None and opened.barrier is not None
                if not self._has_all(opened, opened.ending):
                    waiting.discard(rollout_id)
                    # of what was dropped, the last may have come after the end, beyond the barrier
                    dropped_to = opened.told_to if opened.dropped else 0
                    self._want(rollout_id, opened, opened.ending, max(opened.barrier, dropped_to))
                elif position >= opened.barrier:
                    self._close(rollout_id, opened, seen_to=position)

    def read_backs(self) -> list[ReadBack]:
        """What is wanted from the store (``on_read_back``); an entry stays until it is answered."""
        return list(self._reading.values())

    def unended(self) -> Iterator[str]:
        """Open rollouts of which no end is known."""
        return (rollout_id for rollout_id, opened in self._open.items() if opened.ending is None)

    def forget(self, rollout_id: str, complete_from_us: int) -> None:
        """Give up an open rollout whose end never came, and whose attempts were dispatched before
        ``complete_from_us``; if it comes after all, the store is read back."""
        home = self._open[rollout_id].home
        self._remove(rollout_id)
        self._forgot_before(home, complete_from_us)

    def take_outputs(self) -> list[Output]:
        """What is to be written, oldest first; handed out once."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def floors(self) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) below which everything is done with, where something is open."""
        return [
            (topic, partition, next(iter(held.values()))) for (topic, partition), held in self._held.items() if held
        ]

    # inside

    def _end(self, rollout_id: str, event: Event, *, from_store: bool) -> bool:
        """Take in a terminal state; False when it is no news."""
        opened = self._open.get(rollout_id)
        known = opened.ending if opened is not None else None
        if known is not None and event["version"] <= known.version:
            return False
        ending = ending_of(event)
        closed = self._closed.get(rollout_id)
        if opened is None and closed is not None:
            if event["version"] <= closed.ending.version:
                return False
            if ending.says_the_same(closed.ending):
                self._closed[rollout_id] = closed._replace(ending=ending)
                return False
            opened = self._revive(rollout_id, closed)
        if opened is None:
            opened = self._open[rollout_id] = _Open(self._home(rollout_id))
        opened.ending = ending
        opened.from_store |= from_store
        self._stop_waiting(rollout_id, opened)
        self._without_barrier.setdefault(opened.home, set()).add(rollout_id)
        return True

    def _reopen(self, rollout_id: str, version: int) -> None:
        """A rollout that had ended goes on, by hand: its next end makes the next revision."""
        opened = self._open.get(rollout_id)
        if opened is not None:
            if opened.ending is not None and version > opened.ending.version:
                opened.ending = None
                self._stop_waiting(rollout_id, opened)
                for (topic, _), held in self._held.items():
                    if topic == "rollouts":
                        held.pop(rollout_id, None)
            return
        closed = self._closed.get(rollout_id)
        if closed is not None and version > closed.ending.version:
            self._revive(rollout_id, closed)

    def _is_news(self, closed: _Closed, partition: int, offset: int, event: Event) -> bool:
        """Whether a span of a closed rollout can change what was joined."""
        is_seen = partition == closed.home and offset < closed.seen_to
        if event["attempt_id"] != closed.ending.attempt_id:
            # an earlier attempt's, or one of an attempt whose beginning is not read yet; reading back leaves it out
            self.fenced_spans += not is_seen
            self._closed[event["rollout_id"]] = closed._replace(others=True)
            return False
        if is_seen:
            return False
        self.late_spans += 1
        return closed.ending.status == "succeeded" and view_of(event, partition, offset) is not None

    def _revive(self, rollout_id: str, closed: _Closed) -> _Open:
        del self._closed[rollout_id]
        opened = self._open[rollout_id] = _Open(closed.home, history=closed.history)
        # spans told before are gone from memory: of this attempt and those before it, and where any other
        # attempt's were seen, of any attempt
        opened.began_after = _ANY if closed.others else closed.ending.attempt_number
        return opened

    def _want(self, rollout_id: str, opened: _Open, ending: Ending, offset: int) -> None:
        opened.reading = self._reading[rollout_id] = ReadBack(
            rollout_id, ending.attempt_id, opened.home, offset, history=opened.history is None
        )

    def _has_all(self, opened: _Open, ending: Ending) -> bool:
        """Whether the buffer holds every span of the deciding attempt, and nothing was written before."""
        complete_from_us = self._complete_from_us.get(opened.home)
        return (
            complete_from_us is not None
            and ending.dispatched_at_us >= complete_from_us
            and not opened.dropped
            and not opened.from_store
            and ending.attempt_number > opened.began_after
            and (opened.history is not None or ending.attempt_number <= 1)
            and bool(opened.spans.get(ending.attempt_id))
        )

    def _close(self, rollout_id: str, opened: _Open, seen_to: int) -> None:
        ending = opened.ending
        assert ending is not None
        spans = opened.spans.get(ending.attempt_id, {})
        views = [view for view in spans.values() if view is not None]
        bound = self._bounds.record_bytes
        outcome = join(rollout_id, ending, views, len(spans), opened.home, self._adapter, max_bytes=bound)
        last, content_hash = opened.history, outcome.event["content_hash"]
        if last is None or last.content_hash != content_hash:
            revision = 0 if last is None else last.revision + 1
            self._outputs += [Rejected(rollout_id, ending.attempt_id, refused) for refused in outcome.refused]
            self._outputs.append(Joined(outcome.revised(revision)))
            last = History(revision, content_hash)
        seen_to = max(seen_to, self._positions.get(opened.home, 0))
        self._remove(rollout_id)
        others = opened.began_after == _ANY or opened.dropped or any(i != ending.attempt_id for i in opened.spans)
        self._closed[rollout_id] = _Closed(ending, last, opened.home, seen_to, others)
        if len(self._closed) > self._bounds.closed:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, forgotten = self._closed.popitem(last=False)
        self._forgot_before(forgotten.home, forgotten.ending.dispatched_at_us + 1)

    def _forgot_before(self, partition: int, at_us: int) -> None:
        """What is told of a forgotten rollout from now on looks like a new one; by its age it is known not to be."""
        complete_from_us = self._complete_from_us.get(partition)
        if complete_from_us is not None:
            self._complete_from_us[partition] = max(complete_from_us, at_us)

    def _remove(self, rollout_id: str) -> None:
        opened = self._open.pop(rollout_id)
        self._open_bytes -= opened.weight_bytes
        self._stop_waiting(rollout_id, opened)
        for held in self._held.values():
            held.pop(rollout_id, None)

    def _stop_waiting(self, rollout_id: str, opened: _Open) -> None:
        opened.barrier = opened.reading = None
        self._reading.pop(rollout_id, None)
        for waiting in (self._without_barrier, self._at_barrier):
            if opened.home in waiting:
                waiting[opened.home].discard(rollout_id)

    def _hold(self, topic: str, partition: int, rollout_id: str, offset: int) -> None:
        # offsets come in order, so the first entry of each dict is the lowest
        held = self._held.get((topic, partition))
        if held is None:
            held = self._held[topic, partition] = {}
        held.setdefault(rollout_id, offset)

    def _make_room(self) -> None:
        for rollout_id, opened in self._open.items():
            if self._open_bytes <= self._bounds.open_bytes * 3 // 4:
                break
            if opened.weight_bytes and opened.reading is None:
                self._drop_spans(rollout_id, opened)

    def _drop_spans(self, rollout_id: str, opened: _Open) -> None:
        self._open_bytes -= opened.weight_bytes
        opened.spans, opened.weight_bytes, opened.count, opened.dropped = {}, 0, 0, True
