"""A Connect worker that may be killed, a database and topics for each test, and events as the system writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from agl_stream.cli.main import cli
from agl_stream.infra.connect.client import ConnectClient
from agl_stream.infra.servers.connect import Connect
from agl_stream.infra.servers.fixtures import running
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.infra.servers.postgres import Postgres
from agl_stream.infra.servers.process import ServerFailed
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient

NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


@pytest.fixture(scope="module")
def worker(kafka: Kafka) -> Iterator[Connect]:
    """A Connect worker of this module, to be killed at will; it is its own cluster."""
    group = f"connect-{time.time_ns()}"
    topics = {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    with running(
        "connect", lambda folder: Connect(folder, kafka.bootstrap_servers, group_id=group, conf=topics)
    ) as engine:
        yield engine


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds:.0f} s"
        time.sleep(0.1)
    return value


@dataclass
class Scene:
    """One test's namespace, topics and database, and the command line that works on them."""

    kafka: Kafka
    worker: Connect
    postgres: Postgres
    namespace: str
    registry_url: str
    folder: Path
    codec: Codec
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connect = ConnectClient(self.worker.url)
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})

    def agl(self, *arguments: str) -> Result:
        """Run `agl-stream ARGUMENTS` in this process."""
        return CliRunner(env=self.env).invoke(cli, list(arguments))

    def apply(self, *sinks: str) -> None:
        result = self.agl("connect", "apply", *sinks)
        assert result.exit_code == 0, result.output + repr(result.exception)

    def produce(self, topic: str, event_type: str, *events: dict[str, Any], partition: int = 0) -> None:
        """Write events and wait for their acknowledgement."""
        for event in events:
            self.produce_raw(topic, self.codec.encode(event_type, event), event["rollout_id"], partition)
        assert self._producer.flush(30) == 0

    def produce_raw(self, topic: str, value: bytes | None, key: str = "", partition: int = 0) -> None:
        self._producer.produce(f"{self.namespace}.{topic}", value, key, partition=partition)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def sql(self, text: str) -> str:
        """Answer of the test's database; empty while a table is not there yet."""
        try:
            return self.postgres.sql(text, database=self.namespace)
        except ServerFailed as error:
            if "does not exist" in str(error):
                return ""
            raise

    def wait_sql(self, text: str, wanted: str, seconds: float = 60.0) -> None:
        """Wait until a query answers `wanted`; what it answered and how the sinks are is told otherwise."""
        answer = None
        deadline = time.monotonic() + seconds
        while (answer := self.sql(text)) != wanted:
            if time.monotonic() > deadline:
                status = self.agl("connect", "status").output
                pytest.fail(f"{text}: {answer!r} instead of {wanted!r} after {seconds:.0f} s\n{status}")
            time.sleep(0.1)

    def count(self, topic: str) -> int:
        """How many records a topic of the namespace has had."""
        name = f"{self.namespace}.{topic}"
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "count"})
        try:
            partitions = consumer.list_topics(name, timeout=10).topics[name].partitions
            return sum(consumer.get_watermark_offsets(TopicPartition(name, number), 10)[1] for number in partitions)
        finally:
            consumer.close()

    def read(self, topic: str, count: int, seconds: float = 30.0) -> list[Any]:
        """The first `count` records of a topic of the namespace."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": f"read-{time.time_ns()}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([f"{self.namespace}.{topic}"])
        found: list[Any] = []
        deadline = time.monotonic() + seconds
        try:
            while len(found) < count:
                assert time.monotonic() < deadline, f"{len(found)} of {count} records in {topic}"
                record = consumer.poll(0.5)
                if record is not None and not record.error():
                    found.append(record)
        finally:
            consumer.close()
        return found


@pytest.fixture
def make_scene(
    kafka: Kafka, worker: Connect, postgres: Postgres, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Scene]]:
    """Make a scene on a registry; its connectors and database are removed afterwards."""
    made: list[Scene] = []

    def make(registry_url: str) -> Scene:
        namespace = f"t{time.time_ns() % 10**10}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topics = [f"{namespace}.{topic}" for topic in ("rollouts", "attempts", "triplets", "spans")]
        for answer in admin.create_topics([NewTopic(topic, 2) for topic in topics]).values():
            answer.result(30)
        postgres.sql(f"create database {namespace}", database="postgres")
        registry = RegistryClient(registry_url, namespace=namespace)
        registry.register_all()
        env = {
            "AGL_STREAM_DIR": str(tmp_path),
            "AGL_STREAM_NAMESPACE": namespace,
            "AGL_STREAM_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "AGL_STREAM_REGISTRY_URL": registry_url,
            "AGL_STREAM_CONNECT_URL": worker.url,
            "AGL_STREAM_CONNECT_JDBC_URL": postgres.jdbc_url.rpartition("/")[0] + f"/{namespace}",
        }
        scene = Scene(kafka, worker, postgres, namespace, registry_url, tmp_path, Codec(registry), env)
        made.append(scene)
        return scene

    yield make
    for scene in made:
        for name in scene.connect.configs():
            scene.connect.delete(name)
        postgres.sql(f"drop database {scene.namespace} with (force)", database="postgres")


@pytest.fixture
def scene(make_scene: Callable[[str], Scene], registry_url: str) -> Scene:
    """A scene on the embedded registry."""
    return make_scene(registry_url)


def rollout(number: int, version: int = 1, **changes: Any) -> dict[str, Any]:
    """A RolloutStateChanged; `changes` override."""
    return {
        "rollout_id": f"ro-{number}",
        "version": version,
        "status": "succeeded",
        "occurred_at_us": NOW_US + number,
        "requested_at_us": NOW_US,
        "input": json.dumps({"question": number}),
        "run_id": "run-1",
        "resources_id": "policy",
        "resources_version": number % 3,
        **changes,
    }


def attempt(rollout_number: int, number: int = 1, **changes: Any) -> dict[str, Any]:
    """An AttemptState within a rollout."""
    return {
        "attempt_id": f"at-{rollout_number}-{number}",
        "attempt_number": number,
        "status": "succeeded",
        "worker_id": f"runner-{rollout_number % 2}",
        "dispatched_at_us": NOW_US,
        "started_at_us": NOW_US + 1_000_000,
        "ended_at_us": NOW_US + 3_500_000,
        "reward": rollout_number / 10,
        **changes,
    }
