"""A log made by the real producers of state, and the ways in which sinks may read it.

The log: requests and reports go through the lifecycle's fold, what it announces and the spans go through the joiner,
manifests, publications and rejects are built by the functions that the trainer and the consumers build them with.
The ways: each partition in its order, partitions interleaved at will; batches of any size; records again from an
earlier offset after a crash or from a sink that was paused; compacted topics as the cleaner leaves them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agl_stream.consumers.record import Record
from agl_stream.consumers.rejects import reject_event
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import attempt_id
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.replayable import ReplayableLifecycle
from agl_stream.streams.store import StateReader, StateWriter
from agl_stream.trainer.manifest import build_manifest
from agl_stream.trainer.publication import resources_event
from tests.conformance.store.events import START_US, beat, llm_call, span
from tests.streams.joiner.world import PARTITIONS, World
from tests.streams.lifecycle.histories import control, reported, requested
from tests.streams.makers import Placed, reward_span

PRODUCER = {"name": "test", "instance": "1", "version": "0"}
COMPACTED = tuple(name for name, topic in TOPICS.items() if "compact" in topic.cleanup)
STATUSES = ("preparing", "running", "running", "succeeded", "failed", "timeout", "unresponsive")

Partition = tuple[str, int]


@dataclass
class Log:
    """Partitions of the topics that a sink reads. A record keeps its offset when others are compacted away."""

    partitions: dict[Partition, list[Placed]] = field(default_factory=dict)
    rollout_ids: list[str] = field(default_factory=list)
    start_us: int = START_US

    def append(self, topic: str, key: str, event: Event) -> None:
        count = TOPICS[topic].partitions or PARTITIONS
        number = murmur2_partition(key.encode(), count)
        records = self.partitions.setdefault((topic, number), [])
        # as the event producer completes them; those that say when it happened keep it
        completed = {"producer": PRODUCER, "occurred_at_us": self.start_us + len(records), **event}
        records.append(Placed(topic, number, len(records), completed))

    @property
    def ends(self) -> dict[Partition, int]:
        return {partition: records[-1].offset + 1 for partition, records in self.partitions.items()}

    def compacted(self) -> Log:
        """As the cleaner leaves it at last: of each key of a compacted topic the last record."""
        left: dict[Partition, list[Placed]] = {}
        for (topic, number), records in self.partitions.items():
            if topic in COMPACTED:
                last = {_key_of(topic, record.event): record for record in records}
                records = sorted(last.values(), key=lambda record: record.offset)
            left[topic, number] = records
        return Log(left, self.rollout_ids)


def _key_of(topic: str, event: Event) -> tuple[Any, ...]:
    names = {"rollouts": ("rollout_id",), "workers": ("worker_id",), "resources": ("resources_id", "version")}
    return tuple(event[name] for name in names[topic])


# the log


def write_log(seed: int, rollouts: int = 5) -> Log:
    """A log of everything a sink reads; the same seed gives the same one."""
    luck = random.Random(seed)
    # each in a time of its own, so that two of them in one store leave nothing to chance
    start_us = START_US + seed % 1000 * 10_000
    log = Log(rollout_ids=[f"ro-{seed}-{n}" for n in range(rollouts)], start_us=start_us)
    world, lifecycle = World(), ReplayableLifecycle()
    _publish(log, luck)
    _live(log, luck, world, lifecycle)
    world.settle()
    joined = [event for partition, told in world.log.items() if partition.topic == "triplets" for event in told]
    for event in joined:
        log.append("triplets", event["group_id"] or event["rollout_id"], event)
    for event in world.rejects:
        log.append("rejects", event["event_id"], event)
    _train(log, luck, joined)
    _work(log, luck)
    _reject(log, luck)
    return log


def _publish(log: Log, luck: random.Random) -> None:
    for version in range(1, 4):
        # a trainer that died after publishing does so again
        for again in range(luck.choice((1, 1, 2))):
            event = resources_event(
                resources_id="rs", version=version, resources=f'{{"try": {again}}}', run_id="run", learner_id="l",
                step=version, occurred_at_us=log.start_us + 10 * version + again,
            )  # fmt: skip
            log.append("resources", f"rs@{version}", event)


def _live(log: Log, luck: random.Random, world: World, lifecycle: ReplayableLifecycle) -> None:
    """Requests, reports and controls in a random order through the fold; spans meanwhile, some of them twice."""
    inputs = []
    spans: list[Event] = []
    for rollout_id in log.rollout_ids:
        config = {"max_attempts": luck.randrange(1, 4), "retry_condition": ["failed", "timeout", "unresponsive"]}
        mode = luck.choice(("train", "train", "train", "val"))
        own = [requested(f"request-{rollout_id}", rollout_id=rollout_id, config=config, mode=mode)]
        for number in range(1, luck.randrange(2, 4)):
            for status in luck.sample(STATUSES, luck.randrange(2, 5)):
                at = luck.randrange(1, 6)
                worker = {"worker_id": luck.choice(("w1", "w2"))} if status == "preparing" else {}
                own.append(reported(status, number, at, rollout_id, **worker))
            spans += _spans(luck, rollout_id, number)
        if luck.random() < 0.3:
            own.append(control(luck.choice(("cancel", "requeue")), luck.randrange(1, 6), rollout_id))
        inputs += own
    # an attempt's end after its beginning, mostly
    inputs.sort(key=lambda given: given.event["occurred_at_us"] + luck.randrange(2) * 3_000_000)
    spans += luck.sample(spans, len(spans) // 4)
    for offset, given in enumerate(inputs):
        for effect in lifecycle.feed(given.event_type, given.event, Source(given.topic, 0, offset)):
            event = {"producer": PRODUCER, **effect.event}
            if effect.topic == "rollouts":
                log.append("rollouts", event["rollout_id"], event)
                world.produce_rollout(event)
            elif effect.topic == "rejects":
                log.append("rejects", event["event_id"], event)
        for event in spans[offset :: len(inputs)]:
            log.append("spans", event["rollout_id"], event)
            world.produce_span(event)


def _spans(luck: random.Random, rollout_id: str, number: int) -> list[Event]:
    made: list[Event] = []
    for n in range(luck.randrange(5)):
        given: dict[str, Any] = {"number": number, "occurred_at_us": START_US + luck.randrange(3)}
        make = luck.choice(("call", "call", "reward", "other"))
        if make == "call":
            made.append(llm_call(rollout_id, f"s{n}", n, [n], [number, n], **given))
        elif make == "reward":
            made.append(reward_span(rollout_id, f"s{n}", n, luck.choice((0.0, 0.5)), **given))
        else:
            made.append(span(rollout_id, f"s{n}", n, **given))
    return made


def _train(log: Log, luck: random.Random, joined: list[Event]) -> None:
    """Steps over what was joined; some are made again otherwise, after a checkpoint was lost."""
    known = sorted({event["rollout_id"] for event in joined} | set(log.rollout_ids[:1]))
    for step in range(1, 3):
        for again in range(luck.choice((1, 1, 2))):
            outcomes = [
                {
                    "rollout_id": rollout_id, "attempt_id": attempt_id(rollout_id, 1), "revision": 0, "group_id": "g",
                    "content_hash": "h", "outcome": luck.choice(("trained", "dropped")), "reason_code": "stale",
                    "reward": None, "rows": 1,
                }
                for rollout_id in luck.sample(known, luck.randrange(len(known) + 1))
            ]  # fmt: skip
            ended_at_us = log.start_us + 100 * step + luck.randrange(2) * 7
            manifest = build_manifest(
                learner_id="l", step=step, run_id="run", outcomes=outcomes, rows=len(outcomes), adapter="llm_calls",
                resources_id="rs", version_in=step, version_out=step + 1, offsets={("triplets", 0): 5 * step + again},
                previous_hash=None, metrics={}, started_at_us=START_US, ended_at_us=ended_at_us,
            )  # fmt: skip
            log.append("batches", "l", manifest)


def _work(log: Log, luck: random.Random) -> None:
    for n in range(8):
        worker_id = luck.choice(("w1", "w2", "w3"))
        log.append("workers", worker_id, beat(log.start_us + n, luck.choice(("idle", "busy")), worker_id, slots_free=n))


def _reject(log: Log, luck: random.Random) -> None:
    """The same records rejected by two consumers, in partitions of chance: a poison record has no key."""
    for n in range(6):
        offset, rejected_by = luck.randrange(3), luck.choice(("sink", "joiner"))
        source = Record("spans", 0, offset, 0, None, b"\0poison", "", {})
        event = reject_event(source, luck.choice(("not_framed", "undecodable")), "d", rejected_by=rejected_by)
        log.append("rejects", luck.choice("ab"), event | {"occurred_at_us": log.start_us + n})


# reading it


def courses(log: Log, luck: random.Random, *, again: bool = True) -> Iterator[list[Placed]]:
    """The batches of a sink from the beginning to the end of the log.

    ``again``: now and then the sink dies, and goes on some way before what it had applied; and another one that was
    paused applies an old batch once more.
    """
    positions = dict.fromkeys(log.partitions, 0)
    earlier: list[list[Placed]] = []
    while any(positions[partition] < len(records) for partition, records in log.partitions.items()):
        batch: list[Placed] = []
        partitions = luck.sample(sorted(log.partitions), luck.randrange(1, len(log.partitions) + 1))
        for partition in partitions:
            start = positions[partition]
            positions[partition] = min(start + luck.randrange(1, 12), len(log.partitions[partition]))
            batch += log.partitions[partition][start : positions[partition]]
        batch = _interleaved(batch, luck)
        yield batch
        earlier.append(batch)
        if again and luck.random() < 0.25:
            positions = {partition: luck.randrange(position + 1) for partition, position in positions.items()}
        if again and luck.random() < 0.25:
            yield luck.choice(earlier)
    if again:
        # the whole log once more, in one batch
        yield [record for records in log.partitions.values() for record in records]


def _interleaved(batch: list[Placed], luck: random.Random) -> list[Placed]:
    """The records of each partition in their order, the partitions in any."""
    queues: dict[Partition, list[Placed]] = {}
    for record in reversed(batch):
        queues.setdefault((record.topic, record.partition), []).append(record)
    mixed: list[Placed] = []
    while queues:
        partition = luck.choice(sorted(queues))
        mixed.append(queues[partition].pop())
        if not queues[partition]:
            del queues[partition]
    return mixed


def apply_course(store: StateWriter, log: Log, luck: random.Random, **given: Any) -> None:
    for batch in courses(log, luck, **given):
        store.apply(batch)


def answers(store: StateReader, log: Log) -> dict[str, Any]:
    """What the store says to every question that makes sense for this log."""
    spans = {name: store.get_spans(name) for name in log.rollout_ids}
    attempts = [attempt_id(name, number) for name in log.rollout_ids for number in range(1, 5)]
    return {
        "rollouts": store.query_rollouts().items,
        "rollouts by id": store.get_rollouts([*log.rollout_ids, "ro-none"]),
        "statuses": [store.count_rollouts_by_status(mode=mode) for mode in (None, "train", "val")],
        "spans": spans,
        "spans of first attempts": [store.get_spans(name, attempt_id(name, 1)) for name in log.rollout_ids],
        "activity": store.last_activity(attempts),
        "triplets": [store.get_triplets(name) for name in log.rollout_ids],
        "resources": store.query_resources().items,
        "latest resources": [store.latest_resources(), store.latest_resources("rs"), store.get_resources("rs", 1)],
        "workers": store.workers(),
        "batches": store.batches(),
        "rejects": store.query_rejects().items,
        "reasons": store.rejects_by_reason(),
        "account": [store.account(), store.account("run")],
        "counts": store.counts(),
        "applied": store.applied_offsets(),
    }
