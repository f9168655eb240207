"""A runner under test on a real broker, with a feeder that plays the lifecycle and a watcher that reads along."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.agents import as_agent
from agl_stream.consumers.runner import Runner
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import attempt_id, new_rollout_id
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

PARTITIONS = 4
DEADLINE_SECONDS = 20.0
CONFIG: dict[str, Any] = {
    "timeout_seconds": None,
    "unresponsive_seconds": None,
    "max_attempts": 1,
    "retry_condition": [],
    "backoff_seconds": 0.0,
}


class Feeder:
    """Writes what the lifecycle and its users would write."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.producer = EventProducer(settings, name="feeder", linger_ms=1.0)
        self._next_partition = 0

    def dispatch(self, task: Any = None, *, timeout_seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        """Offer one attempt; returns its event."""
        event = self.dispatched(task, timeout_seconds=timeout_seconds, **fields)
        self.producer.send("dispatch", event, partition=self._next_partition)
        self._next_partition = (self._next_partition + 1) % PARTITIONS
        self.producer.flush()
        return event

    def dispatch_many(self, tasks: list[Any], **fields: Any) -> list[dict[str, Any]]:
        events = [self.dispatched(task, **fields) for task in tasks]
        for index, event in enumerate(events):
            self.producer.send("dispatch", event, partition=index % PARTITIONS)
        self.producer.flush()
        return events

    @staticmethod
    def dispatched(task: Any = None, *, timeout_seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        rollout_id = fields.pop("rollout_id", None) or new_rollout_id()
        number = fields.get("attempt_number", 1)
        return {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id(rollout_id, number),
            "attempt_number": number,
            "input": json.dumps(task),
            "mode": "train",
            "config": {**CONFIG, "timeout_seconds": timeout_seconds},
            "requested_at_us": time.time_ns() // 1000,
            **fields,
        }

    def control(self, rollout_id: str, action: str = "cancel") -> None:
        self.producer.deliver("controls", [(rollout_id, {"rollout_id": rollout_id, "action": action})])

    def publish(self, resources: dict[str, Any], *, resources_id: str = "rs-1", version: int = 1) -> None:
        event = {"resources_id": resources_id, "version": version, "resources": json.dumps(resources)}
        self.producer.deliver("resources", [(None, event)])

    def state(self, offered: dict[str, Any], status: str, *attempts: dict[str, Any]) -> None:
        """A RolloutStateChanged of an offered attempt's rollout."""
        event = {
            "rollout_id": offered["rollout_id"],
            "version": 9,
            "status": status,
            "requested_at_us": offered["requested_at_us"],
            "attempts": [
                {"attempt_id": attempt_id(offered["rollout_id"], a["attempt_number"]), "status": "running", **a}
                for a in attempts
            ],
        }
        self.producer.deliver("rollouts", [(None, event)])

    def garbage(self, value: bytes, partition: int = 0) -> None:
        """A record on the dispatch topic that is no event."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers})
        producer.produce(self.settings.topic("dispatch"), value, partition=partition)
        assert producer.flush(10) == 0


class Watcher:
    """Reads attempts, spans, workers and rejects in the background, in the order of each partition."""

    TOPICS = ("attempts", "spans", "workers", "rejects")

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._settings = settings
        self._codec = codec
        self._events: dict[str, list[dict[str, Any]]] = {topic: [] for topic in self.TOPICS}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def events(self, topic: str, **where: Any) -> list[dict[str, Any]]:
        with self._changed:
            found = list(self._events[topic])
        return [event for event in found if all(event[name] == value for name, value in where.items())]

    def statuses(self, offered: dict[str, Any]) -> list[str]:
        return [event["status"] for event in self.events("attempts", attempt_id=offered["attempt_id"])]

    def end(self, offered: dict[str, Any]) -> dict[str, Any] | None:
        """The report of the attempt's end, if it is there."""
        ended = [
            event
            for event in self.events("attempts", attempt_id=offered["attempt_id"])
            if event["status"] not in ("preparing", "running")
        ]
        return ended[0] if ended else None

    async def wait(self, condition: Callable[[], Any], what: str = "", seconds: float = DEADLINE_SECONDS) -> Any:
        """The condition's value once it is true; fails the test at the deadline."""
        return await asyncio.to_thread(self.wait_blocking, condition, what, seconds)

    def wait_blocking(self, condition: Callable[[], Any], what: str = "", seconds: float = DEADLINE_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            with self._changed:
                self._changed.wait(0.05)
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what or 'the condition'}")
        return value

    async def wait_for_end(self, offered: dict[str, Any]) -> dict[str, Any]:
        return await self.wait(lambda: self.end(offered), f"the end of {offered['input']}")

    async def wait_for_ends(self, offered: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = {event["attempt_id"] for event in offered}

        def all_ended() -> bool:
            ended = {e["attempt_id"] for e in self.events("attempts") if e["status"] not in ("preparing", "running")}
            return wanted <= ended

        await self.wait(all_ended, f"the ends of {len(offered)} attempts")
        return [end for event in offered if (end := self.end(event)) is not None]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._settings.bootstrap_servers,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )
        wire = {self._settings.topic(name): name for name in self.TOPICS}
        consumer.assign(
            [
                TopicPartition(topic, partition, 0)
                for topic, name in wire.items()
                for partition in range(TOPICS[name].partitions or PARTITIONS)
            ]
        )
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    _, event = self._codec.decode(message.value())
                    event["_at"] = (message.partition(), message.offset())
                    with self._changed:
                        self._events[wire[message.topic()]].append(event)
                        self._changed.notify_all()
        consumer.close()


class Bench:
    """One test's namespace: settings, feeder, watcher, and runners started in this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
        self.feed = Feeder(settings)
        self.watch = Watcher(settings, self.codec)

    @asynccontextmanager
    async def runner(self, agent: Any, *, name: str | None = None, **settings: Any) -> AsyncIterator[Runner]:
        """A runner that has joined; stopped at once afterwards. An error of the runner fails the test."""
        ready = asyncio.Event()
        runner = Runner(
            replace(self.settings, **settings), as_agent(agent), name=name, on_ready=lambda worker: ready.set()
        )
        task = asyncio.create_task(runner.run())
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            if task.done():
                await task
            assert ready.is_set(), "the runner did not become ready"
            yield runner
        finally:
            runner.request_stop()
            runner.request_stop()
            await asyncio.wait_for(task, 30)

    def close(self) -> None:
        self.watch.close()
        self.feed.producer.close()


@pytest.fixture
def make_bench() -> Iterator[Callable[[Settings], Bench]]:
    """Makes benches on other brokers than the shared one; creates the topics."""
    made: list[Bench] = []

    def make(settings: Settings) -> Bench:
        create_topics(settings)
        made.append(Bench(settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(broker: BrokerThread, tmp_path: Path) -> Iterator[Bench]:
    settings = Settings(
        register_schemas=True,
        dir=str(tmp_path),
        bootstrap_servers=broker.bootstrap_servers,
        registry_url=broker.registry_url,
        namespace="t" + uuid4().hex[:8],
        partitions=PARTITIONS,
        heartbeat_seconds=0.5,
        drain_seconds=10.0,
        session_timeout_seconds=6.0,
    )
    create_topics(settings)
    bench = Bench(settings)
    yield bench
    bench.close()


def create_topics(settings: Settings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    wanted = [
        NewTopic(settings.topic(t.name), t.partitions or settings.partitions, config=t.config())
        for t in TOPICS.values()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(10)
