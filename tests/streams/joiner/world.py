"""A log, a sink and a state store small enough to be driven step by step, around the real joiner handler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agl_stream.consumers.batch_loop import Partition, Record
from agl_stream.schemas.events import Event
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.core import Bounds
from agl_stream.streams.joiner.handler import JoinerHandler
from agl_stream.streams.joiner.writer import Outgoing

PARTITIONS = 2
INPUTS = [Partition(topic, number) for topic in ("spans", "rollouts") for number in range(PARTITIONS)]
OUTPUT = Partition("triplets", 0)


@dataclass
class World:
    """The log by partition, what the sink has applied of it, and one joiner at work."""

    bounds: Bounds = field(default_factory=Bounds)
    log: dict[Partition, list[Event]] = field(default_factory=dict)
    applied: dict[Partition, int] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    positions: dict[Partition, int] = field(default_factory=dict)
    now_us: int = 1_000_000_000
    rejects: list[Event] = field(default_factory=list)
    broken_writes: int = 0

    def __post_init__(self) -> None:
        self.log = {partition: [] for partition in [*INPUTS, OUTPUT]}
        self.applied = dict.fromkeys(self.log, 0)
        self.start()

    # the joiner

    def start(self) -> None:
        """A new joiner, knowing nothing but the log, the commits and the store."""
        self.handler = JoinerHandler(
            self,  # type: ignore[arg-type]
            self,
            self._write,
            LlmCalls(),
            bounds=self.bounds,
            clock_us=lambda: self.now_us,
            monotonic=lambda: self.now_us / 1e6,
        )
        self.handler.assigned(INPUTS)
        self.positions = {partition: self.committed.get(partition, 0) for partition in INPUTS}

    def rebalance(self) -> None:
        """The partitions go and come back; the handler stays."""
        self.handler.revoked(INPUTS, lost=False)
        self.handler.assigned(INPUTS)
        self.positions = {partition: self.committed.get(partition, 0) for partition in INPUTS}

    def consume(self, partition: Partition, count: int) -> None:
        start = self.positions[partition]
        events = self.log[partition][start : start + count]
        records = [
            Record(partition.topic, partition.number, start + n, 0, None, b"", "", copy.deepcopy(event))
            for n, event in enumerate(events)
        ]
        self.positions[partition] = start + len(records)
        if records:
            self._persistently(lambda: self.handler.handle(records))
        if self.positions[partition] == len(self.log[partition]):
            self._persistently(lambda: self.handler.reached_end([(partition, self.positions[partition])]))

    def idle(self) -> None:
        self._persistently(self.handler.idle)

    def _persistently(self, call: Callable[[], None]) -> None:
        """As the loop does: again with the same records until it works."""
        while True:
            try:
                return call()
            except TimeoutError:
                continue

    def commit(self) -> None:
        floors = dict(self.handler.commit_floors())
        self.committed = {p: min(at, floors.get(p, at)) for p, at in self.positions.items()}

    def _write(self, outgoing: list[Outgoing]) -> None:
        if self.broken_writes:
            self.broken_writes -= 1
            raise TimeoutError("not acknowledged")
        for topic, event, number, _ in outgoing:
            if topic == "rejects":
                self.rejects.append(event)
            else:
                self.log[Partition(topic, number or 0)].append(event)

    def settle(self) -> None:
        """Let everything run until nothing moves any more."""
        still = 0
        while still < 3:
            before = {p: len(events) for p, events in self.log.items()}, dict(self.positions), dict(self.applied)
            for partition in INPUTS:
                self.consume(partition, 1000)
            for partition in self.log:
                self.applied[partition] = len(self.log[partition])
            self.now_us += 300_000_000
            self.idle()
            after = {p: len(events) for p, events in self.log.items()}, dict(self.positions), dict(self.applied)
            still = still + 1 if before == after else 0

    # producers

    def produce_span(self, event: Event, wrong_partition: bool = False) -> None:
        number = murmur2_partition(event["rollout_id"].encode(), PARTITIONS)
        self.log[Partition("spans", (number + wrong_partition) % PARTITIONS)].append(event)

    def produce_rollout(self, event: Event) -> None:
        number = murmur2_partition(event["rollout_id"].encode(), PARTITIONS)
        self.log[Partition("rollouts", number)].append(event)

    # what the joiner asks of the log

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: len(self.log[partition]) for partition in partitions}

    def committed_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.committed[p] for p in partitions if p in self.committed}

    def partition_count(self, topic: str) -> int:
        return 1 if topic == "triplets" else PARTITIONS

    # what it asks of the store: the log up to what the sink has applied

    def applied_offsets(self) -> dict[tuple[str, int], int]:
        return {tuple(partition): offset for partition, offset in self.applied.items() if offset}  # type: ignore[misc]

    def _visible(self, topic: str) -> Iterable[tuple[Partition, int, Event]]:
        for partition, events in self.log.items():
            if partition.topic == topic:
                for offset, event in enumerate(events[: self.applied[partition]]):
                    yield partition, offset, event

    def get_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Event]:
        found: dict[tuple[str, str], Event] = {}
        # the earliest place comes first: it is the one that stays
        for partition, offset, event in sorted(self._visible("spans"), key=lambda seen: seen[:2]):
            if event["rollout_id"] == rollout_id and attempt_id in (None, event["attempt_id"]):
                place = {"source_partition": partition.number, "source_offset": offset}
                found.setdefault((event["attempt_id"], event["span_id"]), {**event, **place})
        return sorted(found.values(), key=lambda event: (event["sequence_id"], event["started_at_us"]))

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]:
        wanted, found = set(rollout_ids), {}
        for _, _, event in self._visible("rollouts"):
            known = found.get(event["rollout_id"])
            if event["rollout_id"] in wanted and (known is None or event["version"] > known["version"]):
                found[event["rollout_id"]] = event
        return found

    def get_triplets(self, rollout_id: str, *, everything: bool = False) -> Event | None:
        latest: Event | None = None
        events = self.log[OUTPUT] if everything else [event for _, _, event in self._visible("triplets")]
        for event in events:
            if event["rollout_id"] == rollout_id and (latest is None or _rank(event) > _rank(latest)):
                latest = event
        return latest

    def joined(self, rollout_id: str) -> list[Event]:
        """Everything written for a rollout, in order."""
        return [event for event in self.log[OUTPUT] if event["rollout_id"] == rollout_id]


def _rank(event: Mapping[str, Any]) -> tuple[int, int]:
    return event["revision"], event["spans_total"]
