"""The lifecycle as processes against a broker: topics, workers, a runner that follows a plan, a view of the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import event_id
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import ENV_PREFIX, Settings

PARTITIONS = 4


def fresh_settings(folder: Path, bootstrap_servers: str, registry_url: str, **overrides: Any) -> Settings:
    """Settings with a namespace of their own, and its topics made."""
    settings = Settings.load(
        dir=str(folder),
        bootstrap_servers=bootstrap_servers,
        registry_url=registry_url,
        namespace="t" + uuid.uuid4().hex[:8],
        partitions=PARTITIONS,
        session_timeout_seconds=6.0,
        **overrides,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    wanted = [
        NewTopic(settings.topic(topic.name), topic.partitions or PARTITIONS, 1, config=topic.config())
        for topic in TOPICS.values()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    return settings


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


class Worker:
    """``agl-stream streams --only lifecycle`` (or other parts) as a process."""

    def __init__(self, settings: Settings, *, only: str = "lifecycle", **overrides: Any) -> None:
        values = {name: getattr(settings, name) for name in settings.__dataclass_fields__} | overrides
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENV_PREFIX)}
        environment |= {ENV_PREFIX + name.upper(): str(value) for name, value in values.items() if value != ""}
        self._out = Path(settings.dir) / f"worker-{uuid.uuid4().hex[:6]}.log"
        self._out.parent.mkdir(parents=True, exist_ok=True)
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agl_stream.cli.main", "streams", "--only", only],
                env=environment,
                stdout=out,
                stderr=out,
            )

    def output(self) -> str:
        return self._out.read_text(errors="replace")

    def wait_ready(self, seconds: float = 40.0) -> Worker:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.output()[-3000:]}"
            return "streams ready" in self.output()

        wait_for(is_ready, seconds, f"the worker is ready; it says {self.output()[-500:]}")
        return self

    def kill(self) -> None:
        """As a machine does it: kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def terminate(self, seconds: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


class LogView(threading.Thread):
    """Reads output topics from their beginning, for as long as the test runs."""

    def __init__(self, settings: Settings, *topics: str) -> None:
        super().__init__(daemon=True)
        self.records: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        """topic -> (partition, event) in the order read."""
        self.on_event: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._settings = settings
        self._topics = topics
        self._codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
        self._over = threading.Event()

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._settings.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
            }
        )
        local = {self._settings.topic(name): name for name in self._topics}
        consumer.assign(
            [
                TopicPartition(wire, number, 0)
                for wire, name in local.items()
                for number in range(TOPICS[name].partitions or PARTITIONS)
            ]
        )
        while not self._over.is_set():
            first = consumer.poll(0.1)
            for message in [] if first is None else [first, *consumer.consume(500, timeout=0.0)]:
                if message.error() is None:
                    name = local[message.topic()]
                    event = self._codec.decode(message.value())[1]
                    self.records[name].append((message.partition(), event))
                    if name in self.on_event:
                        self.on_event[name](event)
        consumer.close()

    def events(self, topic: str) -> list[dict[str, Any]]:
        return [event for _, event in list(self.records[topic])]

    def states(self) -> dict[str, dict[str, Any]]:
        """rollout_id -> the state with the greatest version."""
        latest: dict[str, dict[str, Any]] = {}
        for event in self.events("rollouts"):
            known = latest.get(event["rollout_id"])
            if known is None or event["version"] >= known["version"]:
                latest[event["rollout_id"]] = event
        return latest

    def statuses(self) -> Counter[str]:
        return Counter(state["status"] for state in self.states().values())

    def __enter__(self) -> LogView:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(10)


class PlannedRunner:
    """Answers each offer at once, by plan: (rollout_id, attempt number) -> status and fields. Like a runner, it runs
    a delivery of an attempt once."""

    def __init__(
        self, producer: EventProducer, view: LogView, plan: Callable[[str, int], tuple[str, dict[str, Any]]]
    ) -> None:
        self._producer = producer
        self._plan = plan
        self._seen: dict[str, int] = {}
        view.on_event["dispatch"] = self.answer

    def answer(self, offer: dict[str, Any]) -> None:
        if offer["delivery"] <= self._seen.get(offer["attempt_id"], 0):
            return
        self._seen[offer["attempt_id"]] = offer["delivery"]
        status, fields = self._plan(offer["rollout_id"], offer["attempt_number"])
        for step, more in (
            ("preparing", {"worker_id": "w", "worker_instance": "w-1"}),
            ("running", {}),
            (status, fields),
        ):
            self._producer.send("attempts", report(offer, step, **more))


def report(offer: dict[str, Any], status: str, **fields: Any) -> dict[str, Any]:
    """An AttemptStatusChanged about an offered attempt, with the id that a second try repeats."""
    return {
        "event_id": event_id("test", offer["attempt_id"], offer["delivery"], status),
        "occurred_at_us": now_us(),
        "rollout_id": offer["rollout_id"],
        "attempt_id": offer["attempt_id"],
        "attempt_number": offer["attempt_number"],
        "delivery": offer["delivery"],
        "status": status,
        **fields,
    }
