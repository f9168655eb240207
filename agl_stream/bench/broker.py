"""`agl-stream bench broker`: how quick the embedded broker is, alone or beside Apache Kafka in the same minutes.

Every arm is a broker process of its own; the client (confluent-kafka) runs in this one. Arms take turns within each
round, so that whatever else the machine does hits all of them, and a warm-up round is thrown away. Compare the arms
of one run; rates of different runs or machines say little.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_stream.bench.machine import machine, versions
from agl_stream.bench.rollouts import quantile
from agl_stream.errors import AglStreamError
from agl_stream.local.workplace import workplace
from agl_stream.schemas.ids import new_id
from agl_stream.settings import ENV_PREFIX
from agl_stream.supervise import ProcessSpec, Supervisor, free_ports
from agl_stream.supervise.usage import of_living

EMBEDDED, KAFKA = "embedded", "kafka"
_PAYLOADS = 64
_KEYS = 997
_LINGER_MS = 5
_STALL_SECONDS = 60.0
_LATENCY_WARM_UP = 50
_KAFKA_HEAP_MB = 512
_WHAT = ("mb_per_second", "per_second", "cpu_us")
_FIGURES = tuple(f"{verb}_{what}" for verb in ("produce", "consume") for what in _WHAT)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Arm:
    """A broker under measurement: where it is, and which process's CPU time is its cost."""

    name: str
    bootstrap_servers: str
    pid: int


def run(
    *,
    against_kafka: bool = False,
    messages: int = 200_000,
    sizes: Sequence[int] = (1100,),
    partitions: int = 4,
    rounds: int = 5,
    round_trips: int = 500,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Start the brokers, measure, stop them, and return one JSON-ready object.

    ``sizes`` holds for each record size the figures of each arm (medians over ``rounds``, with every round's value)
    and with ``against_kafka`` their ratios, embedded over Apache Kafka. ``messages`` records of each size are sent
    with acks=all and linger 5 ms to ``partitions`` partitions and read back.
    Raises AglStreamError when a record is refused or nothing moves for a minute, and what starting a broker raises.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(workplace(None))
        arms = [stack.enter_context(_embedded(folder))]
        if against_kafka:
            arms.append(stack.enter_context(_apache_kafka(folder)))
        return measure(
            arms,
            messages=messages,
            sizes=sizes,
            partitions=partitions,
            rounds=rounds,
            round_trips=round_trips,
            progress=progress,
        )


def measure(
    arms: Sequence[Arm],
    *,
    messages: int,
    sizes: Sequence[int],
    partitions: int,
    rounds: int,
    round_trips: int,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """As ``run``, for brokers that run already."""
    total = len(sizes) * (rounds + 1) * len(arms)
    done = 0
    by_size: list[dict[str, Any]] = []
    for size in sizes:
        found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
        for number in range(rounds + 1):
            for arm in arms if number % 2 else reversed(arms):
                figures = _throughput(arm, messages, size, partitions)
                if number:
                    found[arm.name].append(figures)
                done += 1
                progress(done, total)
        by_size.append({"bytes": size, **_summary(found)})
    result = {
        "sizes": by_size,
        "latency_ms": _latency_ms(arms, round_trips),
        "workload": {
            "messages": messages,
            "partitions": partitions,
            "rounds": rounds,
            "round_trips": round_trips,
            "acks": "all",
            "linger_ms": _LINGER_MS,
        },
        "machine": machine(),
        "versions": versions(),
    }
    return result


@contextmanager
def _embedded(folder: Path) -> Iterator[Arm]:
    """`agl-stream broker` as a user runs it."""
    (port,) = free_ports(1)
    with Supervisor(folder / "logs") as supervisor:
        command = [sys.executable, "-m", "agl_stream.cli.main", "broker", "--port", str(port)]
        supervisor.start(ProcessSpec(EMBEDDED, command, env={ENV_PREFIX + "DIR": str(folder)}))
        yield Arm(EMBEDDED, f"127.0.0.1:{port}", supervisor.pids()[EMBEDDED])


@contextmanager
def _apache_kafka(folder: Path) -> Iterator[Arm]:
    """One node of Apache Kafka, with more heap than tests give it."""
    from agl_stream.infra.servers.kafka import Kafka

    kafka = Kafka(folder / "kafka", heap_mb=_KAFKA_HEAP_MB)
    kafka.start()
    try:
        pid = kafka.nodes[0].pid
        assert pid is not None
        yield Arm(KAFKA, kafka.bootstrap_servers, pid)
    finally:
        kafka.kill()


@contextmanager
def _topic(arm: Arm, partitions: int) -> Iterator[str]:
    """A topic of its own for one measurement, deleted afterwards."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"bench-{new_id()[:12]}"
    admin = AdminClient({"bootstrap.servers": arm.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    try:
        _wait_for_leaders(admin, topic, partitions)
        yield topic
    finally:
        admin.delete_topics([topic])[topic].result(30)


def _throughput(arm: Arm, messages: int, size: int, partitions: int) -> dict[str, float]:
    """One round on one arm."""
    with _topic(arm, partitions) as topic:
        before = of_living(arm.pid).cpu_seconds
        produce_seconds = _produce(arm, topic, messages, size)
        between = of_living(arm.pid).cpu_seconds
        consume_seconds = _consume(arm, topic, messages, partitions)
        after = of_living(arm.pid).cpu_seconds
    megabytes = messages * size / 1e6
    return {
        "produce_mb_per_second": megabytes / produce_seconds,
        "consume_mb_per_second": megabytes / consume_seconds,
        "produce_per_second": messages / produce_seconds,
        "consume_per_second": messages / consume_seconds,
        "produce_cpu_us": (between - before) / messages * 1e6,
        "consume_cpu_us": (after - between) / messages * 1e6,
    }


def _wait_for_leaders(admin: Any, topic: str, partitions: int) -> None:
    """A new topic of a cluster is usable a moment after its creation was answered."""
    deadline = time.monotonic() + 30
    while True:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
            return
        if time.monotonic() > deadline:
            raise AglStreamError(f"topic {topic} has no leaders after 30 s")
        time.sleep(0.02)


def _produce(arm: Arm, topic: str, messages: int, size: int) -> float:
    """Seconds from the first record to the last acknowledgement."""
    from confluent_kafka import Producer

    payloads = [os.urandom(size) for _ in range(_PAYLOADS)]
    keys = [str(number).encode() for number in range(_KEYS)]
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": arm.bootstrap_servers,
            "acks": "all",
            "linger.ms": _LINGER_MS,
            "queue.buffering.max.messages": max(messages, 1_000),
            "queue.buffering.max.kbytes": 1 << 20,
            "message.max.bytes": 16 * 1024 * 1024,
        }
    )
    producer.list_topics(topic, timeout=10)
    started = time.perf_counter()
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, payloads[number % _PAYLOADS], keys[number % _KEYS], on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number & 255:
            producer.poll(0)
    left = producer.flush(_STALL_SECONDS)
    seconds = time.perf_counter() - started
    if failed or left:
        why = failed[0] if failed else f"no acknowledgement for {_STALL_SECONDS:g} s"
        raise AglStreamError(f"{arm.name}: {len(failed) + left} of {messages} records were not stored: {why}")
    return seconds


def _consume(arm: Arm, topic: str, messages: int, partitions: int) -> float:
    """Seconds from the assignment until everything is read."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = _consumer(arm, topic)
    try:
        consumer.list_topics(topic, timeout=10)
        started = moved = time.perf_counter()
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        count = 0
        while count < messages:
            got = consumer.consume(5_000, 1.0)
            if any(message.error() for message in got):
                raise AglStreamError(f"{arm.name}: {next(m.error() for m in got if m.error())}")
            count += len(got)
            now = time.perf_counter()
            if got:
                moved = now
            elif now - moved > _STALL_SECONDS:
                raise AglStreamError(f"{arm.name}: {count} of {messages} records read, then none for a minute")
        return time.perf_counter() - started
    finally:
        consumer.close()


def _consumer(arm: Arm, topic: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": arm.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 10,
        }
    )


class _RoundTrips:
    """Single records through one arm: acks=all, no linger, and a consumer that waits for them."""

    def __init__(self, arm: Arm, stack: ExitStack) -> None:
        from confluent_kafka import Producer, TopicPartition

        self._arm = arm
        self._topic = stack.enter_context(_topic(arm, partitions=1))
        self._producer = Producer({"bootstrap.servers": arm.bootstrap_servers, "acks": "all", "linger.ms": 0})
        self._consumer = _consumer(arm, self._topic)
        stack.callback(self._consumer.close)
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        self.took_ms: list[float] = []

    def one(self, number: int) -> None:
        started = time.perf_counter()
        self._producer.produce(self._topic, b"%d" % number)
        self._producer.poll(0)
        message = self._consumer.poll(_STALL_SECONDS)
        self.took_ms.append((time.perf_counter() - started) * 1000)
        if message is None or message.error() or message.value() != b"%d" % number:
            raise AglStreamError(f"{self._arm.name}: record {number} did not come back")


def _latency_ms(arms: Sequence[Arm], round_trips: int) -> dict[str, dict[str, float]]:
    """From produce() of a record until its consumer has it; the arms take turns, record by record."""
    with ExitStack() as stack:
        trips = {arm.name: _RoundTrips(arm, stack) for arm in arms}
        for number in range(_LATENCY_WARM_UP + round_trips):
            for trip in trips.values():
                trip.one(number)
    found = {name: sorted(trip.took_ms[_LATENCY_WARM_UP:]) for name, trip in trips.items()}
    return {name: {"p50": quantile(took, 0.50), "p99": quantile(took, 0.99)} for name, took in found.items()}


def _summary(found: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians by arm, each round's rates, and the ratio of the arms where there are two."""
    arms = {
        name: {
            "median": {key: _rounded(statistics.median(r[key] for r in rounds)) for key in _FIGURES},
            "rounds": {key: [_rounded(r[key]) for r in rounds] for key in _FIGURES if "mb_" in key},
        }
        for name, rounds in found.items()
    }
    if KAFKA not in arms:
        return {"arms": arms}
    ratio = {
        verb: round(
            statistics.median(
                ours[f"{verb}_per_second"] / theirs[f"{verb}_per_second"]
                for ours, theirs in zip(found[EMBEDDED], found[KAFKA], strict=True)
            ),
            2,
        )
        for verb in ("produce", "consume")
    }
    return {"arms": arms, "embedded_over_kafka": ratio}


COLUMNS = ("produce MB/s", "records/s", "CPU us", "consume MB/s", "records/s", "CPU us")
"""Headings of the rows()."""


def rows(by_size: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The medians of one record size as a table, an arm a row."""
    return [
        (name, *(arm["median"][f"{verb}_{what}"] for verb in ("produce", "consume") for what in _WHAT))
        for name, arm in by_size["arms"].items()
    ]


def latency_rows(result: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(name, found["p50"], found["p99"]) for name, found in result["latency_ms"].items()]


def _rounded(value: float) -> float:
    return round(value, 1) if value < 1000 else round(value)
