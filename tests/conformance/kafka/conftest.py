"""What the conformance cases run against: the embedded broker, or a real cluster named by the environment.

`AGL_STREAM_CONFORMANCE_BOOTSTRAP=host:port` runs the same cases there. What an engine does not have it declares
in its Capabilities; a case then asserts the clear refusal instead of being left out.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.testing import BrokerThread

BOOTSTRAP_VARIABLE = "AGL_STREAM_CONFORMANCE_BOOTSTRAP"


@dataclass(frozen=True)
class Capabilities:
    """What differs between engines on purpose."""

    consumer_group_protocol: bool
    """KIP-848, `group.protocol=consumer`."""
    replication: bool
    session_timeout_ms: int
    """The shortest that the engine takes."""
    cleaning_seconds: float
    """How long retention and compaction may take to be seen."""


EMBEDDED = Capabilities(consumer_group_protocol=False, replication=False, session_timeout_ms=1_000, cleaning_seconds=15)
KAFKA = Capabilities(consumer_group_protocol=True, replication=True, session_timeout_ms=6_000, cleaning_seconds=60)


class Cluster:
    """The engine under test, with the few moves that most cases need."""

    def __init__(self, bootstrap_servers: str, capabilities: Capabilities) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.capabilities = capabilities
        self.admin = AdminClient(self.config())

    def config(self, **settings: Any) -> dict[str, Any]:
        """Configuration of a confluent client; underscores stand for dots."""
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 3, **dotted}

    def group_config(self, group: str | None = None, **settings: Any) -> dict[str, Any]:
        """As config(), for a member of a group that notices rebalances and deaths quickly."""
        quick = {
            "group_id": group or unique("group"),
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": max(2_000, self.capabilities.session_timeout_ms),
            "heartbeat_interval_ms": 200,
        }
        return self.config(**{**quick, **settings})

    def create_topic(self, partitions: int = 1, *, name: str | None = None, **settings: str) -> str:
        """A new topic; raises when the engine refuses it."""
        topic = name or unique("topic")
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(10)
        return topic

    def produce(self, topic: str, values: Iterable[bytes | None], *, keys: int = 7, **settings: Any) -> None:
        """Values with keys "0" to "keys - 1" in turn; returns when all are acknowledged, raises if one is not."""
        errors: list[KafkaError] = []
        producer = Producer(self.config(**settings))
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                key=str(number % keys).encode(),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(20) == 0
        assert not errors, errors[:3]

    def read_all(self, topic: str, *, committed_only: bool = True, **settings: Any) -> list[Message]:
        """Everything in a topic, from the start to the end as the isolation level sees it."""
        isolation = "read_committed" if committed_only else "read_uncommitted"
        consumer = Consumer(
            self.config(
                group_id=unique("reader"),
                isolation_level=isolation,
                enable_partition_eof=True,
                enable_auto_commit=False,
                fetch_wait_max_ms=10,  # the end is reported by an empty answer
                **settings,
            )
        )
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            messages: list[Message] = []
            open_partitions = set(partitions)
            deadline = time.monotonic() + 20
            while open_partitions:
                assert time.monotonic() < deadline, f"partitions {open_partitions} of {topic} have not ended"
                for message in consumer.consume(1_000, 0.1):
                    error = message.error()
                    if error is None:
                        messages.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(message.partition())
                    else:
                        raise AssertionError(error)
            return messages
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = Consumer(self.config(group_id=unique("reader")))
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
            return low, high
        finally:
            consumer.close()


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def wait_until(condition: Callable[[], object], seconds: float = 20.0, what: str = "the condition") -> None:
    """Return as soon as `condition` is true; it may do a short piece of work at each call."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds:.0f} s"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    address = os.environ.get(BOOTSTRAP_VARIABLE)
    if address:
        yield Cluster(address, KAFKA)
        return
    config = BrokerConfig(auto_create_topics=True, group_initial_rebalance_delay_ms=50, housekeeping_seconds=0.5)
    with BrokerThread(config=config) as broker:
        yield Cluster(broker.bootstrap_servers, EMBEDDED)


@pytest.fixture(scope="session", name="unique")
def unique_fixture() -> Callable[[str], str]:
    return unique


@pytest.fixture(scope="session", name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until
