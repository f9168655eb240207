"""A namespace of its own for each test module, and a reader of what is on the log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

PARTITIONS = 4


def make_topics(settings: Settings) -> None:
    """The catalogue's topics in the settings' namespace."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    wanted = [
        NewTopic(settings.topic(topic.name), topic.partitions or settings.partitions, 1) for topic in TOPICS.values()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(30)


class Log:
    """Reads topics of one namespace from their beginning."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))

    def records(
        self, topic: str, enough: Callable[[list[tuple[int, str, dict[str, Any]]]], bool], seconds: float = 20.0
    ) -> list[tuple[int, str, dict[str, Any]]]:
        """(partition, key, event) of everything on ``topic`` as soon as ``enough`` says so; fails after ``seconds``."""
        consumer = Consumer({"bootstrap.servers": self._settings.bootstrap_servers, "group.id": uuid.uuid4().hex})
        wire_name = self._settings.topic(topic)
        found: list[tuple[int, str, dict[str, Any]]] = []
        try:
            partitions = consumer.list_topics(wire_name, timeout=10).topics[wire_name].partitions
            consumer.assign([TopicPartition(wire_name, number, 0) for number in partitions])
            deadline = time.monotonic() + seconds
            while not enough(found):
                for message in consumer.consume(1000, timeout=0.05):
                    assert message.error() is None, message.error()
                    event = self._codec.decode(message.value())[1]
                    found.append((message.partition(), message.key().decode(), event))
                assert time.monotonic() < deadline, f"not enough on {topic}: {len(found)} records"
        finally:
            consumer.close()
        return found

    def events(self, topic: str, rollout_id: str, count: int = 1) -> list[dict[str, Any]]:
        """The first ``count`` events (or more) of one rollout, in sequence where they have one."""
        found = self.records(topic, lambda all_: sum(key == rollout_id for _, key, _ in all_) >= count)
        mine = [event for _, key, event in found if key == rollout_id]
        return sorted(mine, key=lambda event: event.get("sequence_id", 0))


@pytest.fixture(scope="module")
def settings(broker: BrokerThread, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("folder")
    made = Settings(
        register_schemas=True,
        dir=str(folder),
        bootstrap_servers=broker.bootstrap_servers,
        registry_url=broker.registry_url,
        namespace="t" + uuid.uuid4().hex[:8],
        partitions=PARTITIONS,
        delivery_timeout_seconds=30.0,
        linger_ms=1.0,
    )
    make_topics(made)
    return made


@pytest.fixture(scope="module")
def log(settings: Settings) -> Log:
    return Log(settings)


@pytest.fixture(scope="module")
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="tests") as made:
        yield made


@pytest.fixture
def rollout_id() -> str:
    return "ro-" + uuid.uuid4().hex[:16]
