"""confluent-kafka (librdkafka) behind the interface of the conformance cases."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import confluent_kafka as ck
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka import admin as ck_admin

from tests.conformance.kafka.clients.port import (
    END,
    SECONDS,
    START,
    Ability,
    ConsumerSettings,
    Group,
    Partition,
    ProducerSettings,
    Record,
    Refused,
)

_PLACES = {START: ck.OFFSET_BEGINNING, END: ck.OFFSET_END}
_UNCOMMITTED = ck.OFFSET_INVALID
_STATES = {
    ck.ConsumerGroupState.STABLE: "Stable",
    ck.ConsumerGroupState.EMPTY: "Empty",
    ck.ConsumerGroupState.DEAD: "Dead",
    ck.ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ck.ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _refused(error.args[0]) from error


def _refused(error: ck.KafkaError) -> Refused:
    return Refused(error.code(), error.str())


def _partition(partition: Partition, offset: int = ck.OFFSET_INVALID) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number, offset)


class ConfluentProducer:
    def __init__(self, bootstrap_servers: str, settings: ProducerSettings) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 3,
            "acks": settings.acks,
            "compression.type": settings.compression,
            "linger.ms": settings.linger_ms,
            "message.max.bytes": settings.max_request_bytes,
            "enable.idempotence": settings.idempotent or settings.transactional_id is not None,
        }
        if settings.batch_bytes is not None:
            config["batch.size"] = settings.batch_bytes
        if settings.transactional_id is not None:
            config["transactional.id"] = settings.transactional_id
            config["transaction.timeout.ms"] = settings.transaction_timeout_ms
        self._producer = ck.Producer(config)
        self._outcomes: list[int | Refused | None] = []
        if settings.transactional_id is not None:
            with _refusals():
                self._producer.init_transactions(SECONDS)

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        place, outcomes = len(self._outcomes), self._outcomes

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            outcomes[place] = _refused(error) if error else message.offset()

        given: dict[str, Any] = {"headers": list(headers)}
        if partition.number >= 0:
            given["partition"] = partition.number
        if timestamp_ms is not None:
            given["timestamp"] = timestamp_ms
        with _refusals():
            self._producer.produce(partition.topic, value, key, on_delivery=delivered, **given)
        outcomes.append(None)
        self._producer.poll(0)

    def flush(self) -> list[Any]:
        assert self._producer.flush(SECONDS) == 0, "records are neither acknowledged nor refused"
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def begin(self) -> None:
        with _refusals():
            self._producer.begin_transaction()

    def commit(self) -> None:
        with _refusals():
            self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        with _refusals():
            self._producer.abort_transaction(SECONDS)

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        rows = [_partition(partition, offset) for partition, offset in offsets.items()]
        with _refusals():
            self._producer.send_offsets_to_transaction(rows, consumer.inner.consumer_group_metadata(), SECONDS)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):  # a producer that was fenced says so once more
            self._producer.purge()
            self._producer.flush(1)


class ConfluentConsumer:
    def __init__(self, bootstrap_servers: str, settings: ConsumerSettings, **more: Any) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 3,
            "group.id": settings.group or "not-a-member",
            "auto.offset.reset": {"none": "error"}.get(settings.reset, settings.reset),
            "isolation.level": "read_committed" if settings.committed_only else "read_uncommitted",
            "fetch.min.bytes": settings.min_bytes,
            "fetch.wait.max.ms": settings.max_wait_ms,
            "fetch.max.bytes": max(settings.max_bytes, settings.partition_max_bytes),
            "fetch.message.max.bytes": settings.partition_max_bytes,
            "message.max.bytes": min(1_000_000, settings.max_bytes),
            "receive.message.max.bytes": 100_000_000,
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": settings.heartbeat_ms,
            "max.poll.interval.ms": max(settings.max_poll_interval_ms, settings.session_timeout_ms),
            "partition.assignment.strategy": ",".join(settings.strategies),
            "enable.auto.commit": settings.auto_commit,
            "topic.metadata.refresh.interval.ms": 500,
            **more,
        }
        if settings.instance_id is not None:
            config["group.instance.id"] = settings.instance_id
        config = {name: value for name, value in config.items() if value is not None}
        self.errors: list[ck.KafkaError] = []
        self.inner = ck.Consumer({**config, "error_cb": self.errors.append})
        self.rebalances = 0

    def subscribe(self, *topics: str) -> None:
        def assigned(*_: Any) -> None:
            self.rebalances += 1

        self.inner.subscribe(list(topics), on_assign=assigned)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self.inner.assign(
            [_partition(partition, _PLACES.get(offset, offset)) for partition, offset in positions.items()]
        )

    def poll(self, seconds: float = 0.05) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + seconds
        message = self.inner.poll(seconds)
        while message is not None:
            error = message.error()
            if error is not None:
                raise _refused(error)
            records.append(_record(message))
            message = self.inner.poll(0) if time.monotonic() < deadline else None
        return records

    def assignment(self) -> set[Partition]:
        return {Partition(found.topic, found.partition) for found in self.inner.assignment()}

    def position(self, partition: Partition) -> int:
        (found,) = self.inner.position([_partition(partition)])
        return found.offset

    def seek(self, partition: Partition, offset: int) -> None:
        self.inner.seek(_partition(partition, _PLACES.get(offset, offset)))

    def pause(self, partition: Partition) -> None:
        self.inner.pause([_partition(partition)])

    def resume(self, partition: Partition) -> None:
        self.inner.resume([_partition(partition)])

    def commit(self, offsets: Mapping[Partition, tuple[int, str]] | None = None) -> None:
        with _refusals():
            if offsets is None:
                self.inner.commit(asynchronous=False)
                return
            rows = [
                TopicPartition(partition.topic, partition.number, offset, metadata=note)
                for partition, (offset, note) in offsets.items()
            ]
            for row in self.inner.commit(offsets=rows, asynchronous=False) or ():
                if row.error is not None:
                    raise _refused(row.error)

    def committed(self, partition: Partition) -> int | None:
        with _refusals():
            (found,) = self.inner.committed([_partition(partition)], SECONDS)
        return None if found.offset == _UNCOMMITTED else found.offset

    def ends(self, partition: Partition) -> tuple[int, int]:
        with _refusals():
            low, high = self.inner.get_watermark_offsets(_partition(partition), SECONDS)
        return low, high

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        with _refusals():
            (found,) = self.inner.offsets_for_times([_partition(partition, timestamp_ms)], SECONDS)
        return None if found.offset == ck.OFFSET_END else found.offset

    def close(self) -> None:
        self.inner.close()


def _record(message: ck.Message) -> Record:
    return Record(
        Partition(message.topic() or "", message.partition() or 0),
        message.offset() or 0,
        message.key(),  # type: ignore[arg-type]
        message.value(),  # type: ignore[arg-type]
        list(message.headers() or ()),  # type: ignore[arg-type]
        message.timestamp()[1],
    )


class ConfluentAdmin:
    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})

    @staticmethod
    def _result(futures: Mapping[Any, Any]) -> Any:
        (future,) = futures.values()
        with _refusals():
            return future.result(SECONDS)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        topic = ck_admin.NewTopic(name, partitions, replicas, config=dict(config or {}))
        self._result(self._admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        self._result(self._admin.delete_topics([name]))

    def topics(self) -> set[str]:
        with _refusals():
            return set(self._admin.list_topics(timeout=SECONDS).topics)

    def partitions(self, topic: str) -> list[int]:
        with _refusals():
            described = self._admin.list_topics(timeout=SECONDS).topics.get(topic)
        return sorted(described.partitions) if described else []

    def add_partitions(self, topic: str, total: int) -> None:
        self._result(self._admin.create_partitions([ck_admin.NewPartitions(topic, total)]))

    def config(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, topic)
        entries = self._result(self._admin.describe_configs([resource]))
        own = ck_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: (entry.value, entry.source == own) for name, entry in entries.items()}

    def broker_config(self) -> dict[str, str]:
        _, (broker, *_) = self.cluster()
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.BROKER, str(broker))
        entries = self._result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        operation = ck_admin.AlterConfigOpType
        entries = [
            ck_admin.ConfigEntry(
                name, value, incremental_operation=operation.DELETE if value is None else operation.SET
            )
            for name, value in changes.items()
        ]
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, topic, incremental_configs=entries)
        self._result(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, partition: Partition, before: int) -> int:
        return self._result(self._admin.delete_records([_partition(partition, before)])).low_watermark

    def cluster(self) -> tuple[str, list[int]]:
        with _refusals():
            described = self._admin.describe_cluster().result(SECONDS)
        return described.cluster_id, [node.id for node in described.nodes]

    def groups(self) -> set[str]:
        with _refusals():
            listing = self._admin.list_consumer_groups().result(SECONDS)
        return {group.group_id for group in listing.valid}

    def groups_in_state(self, state: str) -> set[str]:
        wanted = {known for known, name in _STATES.items() if name == state}
        with _refusals():
            listing = self._admin.list_consumer_groups(states=wanted).result(SECONDS)
        return {group.group_id for group in listing.valid}

    def group(self, group: str) -> Group:
        described = self._result(self._admin.describe_consumer_groups([group]))
        members = [member.member_id for member in described.members]
        return Group(_STATES[described.state], described.partition_assignor, members)

    def delete_group(self, group: str) -> None:
        self._result(self._admin.delete_consumer_groups([group]))

    def group_offsets(self, group: str) -> dict[Partition, tuple[int, str]]:
        listed = self._result(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {
            Partition(row.topic, row.partition): (row.offset, row.metadata or "") for row in listed.topic_partitions
        }

    def set_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        rows = [_partition(partition, offset) for partition, offset in offsets.items()]
        changed = self._result(self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, rows)]))
        for row in changed.topic_partitions:
            if row.error is not None:
                raise _refused(row.error)

    def remove_member(self, group: str, member_id: str) -> None:
        raise NotImplementedError(ConfluentClient.lacks[Ability.REMOVE_MEMBERS])

    def delete_group_offsets(self, group: str, partition: Partition) -> None:
        raise NotImplementedError(ConfluentClient.lacks[Ability.DELETE_OFFSETS])

    def list_offset(self, partition: Partition, timestamp: int, *, committed_only: bool = False) -> int:
        special: dict[int, Callable[[], ck_admin.OffsetSpec]] = {
            -1: ck_admin.OffsetSpec.latest,
            -2: ck_admin.OffsetSpec.earliest,
            -3: ck_admin.OffsetSpec.max_timestamp,
        }
        wanted = special[timestamp]() if timestamp < 0 else ck_admin.OffsetSpec.for_timestamp(timestamp)
        level = ck.IsolationLevel.READ_COMMITTED if committed_only else ck.IsolationLevel.READ_UNCOMMITTED
        return self._result(self._admin.list_offsets({_partition(partition): wanted}, isolation_level=level)).offset

    def close(self) -> None:
        """The client has no close; it ends when it is collected."""


class ConfluentClient:
    name = "confluent-kafka"
    lacks: Mapping[Ability, str] = {
        Ability.DELETE_OFFSETS: "AdminClient has no such method",
        Ability.REMOVE_MEMBERS: "AdminClient has no such method",
    }

    def producer(self, bootstrap_servers: str, settings: ProducerSettings) -> ConfluentProducer:
        return ConfluentProducer(bootstrap_servers, settings)

    def consumer(self, bootstrap_servers: str, settings: ConsumerSettings) -> ConfluentConsumer:
        return ConfluentConsumer(bootstrap_servers, settings)

    def admin(self, bootstrap_servers: str) -> ConfluentAdmin:
        return ConfluentAdmin(bootstrap_servers)
