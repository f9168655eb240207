"""The engines under test, what differs between them on purpose, and the moves that most cases need."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agl_stream.infra.embedded.config import BrokerConfig
from tests.conformance.kafka.clients.confluent import ConfluentAdmin, ConfluentConsumer, ConfluentProducer
from tests.conformance.kafka.clients.port import (
    START,
    ConsumerSettings,
    Partition,
    ProducerSettings,
    Record,
    Refused,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What differs between engines on purpose."""

    engine: str
    consumer_group_protocol: bool
    """KIP-848, `group.protocol=consumer`."""
    fetch_sessions: bool
    """KIP-227: whether a fetch may name only what has changed."""
    log_append_time: bool
    """message.timestamp.type=LogAppendTime"""
    reads_records: bool
    """Whether what is inside a batch is checked when it is produced."""
    largest_time_of_what_is_left: bool
    """Whether the largest timestamp is looked for from the start of the log only, where DeleteRecords has moved it."""
    session_timeout_ms: int
    """The shortest that the engine takes."""
    cleaning_seconds: float
    """How long retention and compaction may take to be seen."""


EMBEDDED = Capabilities(
    "embedded",
    consumer_group_protocol=False,
    fetch_sessions=False,
    log_append_time=False,
    reads_records=False,
    largest_time_of_what_is_left=True,
    session_timeout_ms=1_000,
    cleaning_seconds=20,
)
KAFKA = Capabilities(
    "kafka",
    consumer_group_protocol=True,
    fetch_sessions=True,
    log_append_time=True,
    reads_records=True,
    largest_time_of_what_is_left=False,
    session_timeout_ms=6_000,
    cleaning_seconds=60,
)

EMBEDDED_SETTINGS = BrokerConfig(
    auto_create_topics=True, group_initial_rebalance_delay_ms=0, housekeeping_seconds=0.25, max_message_bytes=32_000_000
)


_STILL_COMING = (3, 5, 6, -156)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, and librdkafka's word for all of them"""


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "the condition") -> None:
    """Return as soon as `condition` is true; it may do a short piece of work at each call."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds:.0f} s"
        time.sleep(0.005)


class Cluster:
    """One engine. Its own moves use confluent-kafka; what a case is about goes through the client under test."""

    def __init__(self, bootstrap_servers: str, capabilities: Capabilities) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.capabilities = capabilities
        self.admin = ConfluentAdmin(bootstrap_servers)
        self._producer = ConfluentProducer(bootstrap_servers, ProducerSettings())

    def close(self) -> None:
        """End the clients while their engine is still there."""
        self._producer.close()
        del self._producer, self.admin

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic, ready for use; underscores in the settings stand for dots."""
        name = unique("topic")
        self.admin.create_topic(
            name, partitions, config={key.replace("_", "."): value for key, value in config.items()}
        )
        wait_until(lambda: len(self.admin.partitions(name)) == partitions, what=f"topic {name}")
        self._offset(Partition(name, partitions - 1), -1)  # its leader is at work
        return name

    def partition(self, **config: str) -> Partition:
        """The partition of a new topic that has one."""
        return Partition(self.topic(**config))

    def write(self, partition: Partition, values: Iterable[bytes | None], **record: Any) -> list[int]:
        """Records, acknowledged one and all; their offsets."""
        for value in values:
            self._producer.send(partition, value, **record)
        offsets = self._producer.flush()
        assert all(isinstance(offset, int) for offset in offsets), offsets[:3]
        return offsets

    def read(self, *partitions: Partition, committed_only: bool = True) -> list[Record]:
        """Everything in partitions, from the start to the end as it is at the call."""
        settings = ConsumerSettings(committed_only=committed_only, max_wait_ms=10, partition_max_bytes=20_000_000)
        consumer = ConfluentConsumer(self.bootstrap_servers, settings)
        ends = {partition: self._offset(partition, -1, committed_only) for partition in partitions}
        records: list[Record] = []
        try:
            consumer.assign(dict.fromkeys(partitions, START))

            def at_the_end() -> bool:
                records.extend(consumer.poll(0.05))
                return all(max(0, consumer.position(partition)) >= end for partition, end in ends.items())

            starts = {partition: self._offset(partition, -2) for partition in partitions}
            if any(ends[partition] > start for partition, start in starts.items()):
                wait_until(at_the_end, what=f"the end of {partitions}")
        finally:
            consumer.close()
        return [record for record in records if record.offset < ends[record.partition]]

    def values(self, *partitions: Partition, committed_only: bool = True) -> list[bytes | None]:
        return [record.value for record in self.read(*partitions, committed_only=committed_only)]

    def settle(self, partition: Partition) -> None:
        """Wait for the marker of a transaction that was ended: Apache Kafka writes it after its answer."""

        def settled() -> bool:
            return self._offset(partition, -1, committed_only=True) == self._offset(partition, -1)

        wait_until(settled, what=f"the end of the transactions of {partition}")

    def ends(self, partition: Partition) -> tuple[int, int]:
        """(earliest, latest) offset"""
        return self._offset(partition, -2), self._offset(partition, -1)

    def _offset(self, partition: Partition, timestamp: int, committed_only: bool = False) -> int:
        def listed() -> int:
            self.admin.partitions(partition.topic)  # librdkafka lists what it knows, and learns of news by this
            return self.admin.list_offset(partition, timestamp, committed_only=committed_only)

        return eventually(listed)


class Use:
    """The client under test against the engine under test; what it opens is closed after the case."""

    def __init__(self, client: Any, cluster: Cluster) -> None:
        self.client = client
        self._cluster = cluster
        self._opened: list[Any] = []

    def producer(self, **settings: Any) -> Any:
        return self._keep(self.client.producer(self._cluster.bootstrap_servers, ProducerSettings(**settings)))

    def consumer(self, **settings: Any) -> Any:
        settings.setdefault("session_timeout_ms", max(6_000, self._cluster.capabilities.session_timeout_ms))
        return self._keep(self.client.consumer(self._cluster.bootstrap_servers, ConsumerSettings(**settings)))

    def admin(self) -> Any:
        return self._keep(self.client.admin(self._cluster.bootstrap_servers))

    def _keep(self, opened: Any) -> Any:
        self._opened.append(opened)
        return opened

    def close(self, *which: Any) -> None:
        """Close these, or everything that is open."""
        for opened in which or tuple(reversed(self._opened)):
            self._opened.remove(opened)
            opened.close()


def poll_until(consumers: Iterable[Any], condition: Callable[[list[Record]], Any], what: str = "the records") -> Any:
    """Poll consumers in turn until `condition(records so far)` is true; returns the records."""
    records: list[Record] = []
    consumers = list(consumers)

    def step() -> Any:
        for consumer in consumers:
            records.extend(consumer.poll(0.02))
        return condition(records)

    wait_until(step, what=what)
    return records


def take(consumer: Any, count: int) -> list[Record]:
    """Poll until there are at least so many records."""
    return poll_until([consumer], lambda records: len(records) >= count, f"{count} records")


def take_new(cluster: Cluster, consumer: Any, partition: Partition) -> list[Record]:
    """Write b"new" again and again until the consumer, which may still be looking for its place, reads something."""
    records: list[Record] = []

    def read() -> list[Record]:
        cluster.write(partition, [b"new"])
        records.extend(consumer.poll(0.1))
        return records

    wait_until(read, what="a record")
    return records


def eventually(action: Callable[[], Any]) -> Any:
    """The result of an action that is refused while the engine is still making or moving a partition."""
    results: list[Any] = []

    def done() -> bool:
        try:
            results.append(action())
        except Refused as refused:
            if refused.code not in _STILL_COMING:
                raise
        return bool(results)

    wait_until(done, what="the partition")
    return results[0]


def refusal(action: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """The code with which the engine refuses an action."""
    try:
        action(*arguments, **named)
    except Refused as refused:
        return refused.code
    raise AssertionError("it was not refused")


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]
