"""kafka-python behind the interface of the conformance cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import kafka
from kafka import ConsumerRebalanceListener, KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.structs import OffsetAndMetadata

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

_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


_JOIN_SECONDS = 3.0
"""A poll that ends before its join does may leave version 3.0.12 waiting for ever, whatever the engine."""


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except kafka_errors.KafkaError as error:
        raise _refused(error) from error


def _refused(error: Any) -> Refused:
    return Refused(getattr(error, "errno", -1) or -1, f"{type(error).__name__} {error}")


def _check(error: Any) -> None:
    """Raise for an error class or name as the admin client returns them in its results."""
    if isinstance(error, str):
        error = None if error == "OK" else getattr(kafka_errors, error)
    if error is not None and error is not kafka_errors.NoError:
        raise Refused(error.errno, error.__name__)


class KafkaPythonProducer:
    def __init__(self, bootstrap_servers: str, settings: ProducerSettings) -> None:
        config: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "acks": "all" if settings.acks == -1 else settings.acks,
            "compression_type": None if settings.compression == "none" else settings.compression,
            "linger_ms": settings.linger_ms,
            "max_request_size": settings.max_request_bytes,
            "enable_idempotence": settings.idempotent or settings.transactional_id is not None,
            "max_block_ms": int(SECONDS * 1000),
        }
        if settings.batch_bytes is not None:
            config["batch_size"] = settings.batch_bytes
        if settings.transactional_id is not None:
            config["transactional_id"] = settings.transactional_id
            config["transaction_timeout_ms"] = settings.transaction_timeout_ms
        self._producer = kafka.KafkaProducer(**config)
        self._outcomes: list[Any] = []
        if settings.transactional_id is not None:
            try:
                with _refusals():
                    self._producer.init_transactions()
            except Refused:
                self.close()
                raise

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        try:
            with _refusals():
                sent = self._producer.send(
                    partition.topic,
                    value,
                    key,
                    headers=list(headers),
                    partition=partition.number if partition.number >= 0 else None,
                    timestamp_ms=timestamp_ms,
                )
        except Refused as refused:
            self._outcomes.append(refused)
        else:
            self._outcomes.append(sent)

    def flush(self) -> list[Any]:
        sent, self._outcomes = self._outcomes, []
        with _refusals():
            self._producer.flush(SECONDS)
        return [self._outcome(one) for one in sent]

    @staticmethod
    def _outcome(sent: Any) -> int | Refused:
        if isinstance(sent, Refused):
            return sent
        try:
            return sent.get(SECONDS).offset
        except kafka_errors.KafkaError as error:
            return _refused(error)

    def begin(self) -> None:
        with _refusals():
            self._producer.begin_transaction()

    def commit(self) -> None:
        with _refusals():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _refusals():
            self._producer.abort_transaction()

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        rows = {TopicPartition(*partition): OffsetAndMetadata(offset, "") for partition, offset in offsets.items()}
        with _refusals():
            self._producer.send_offsets_to_transaction(rows, consumer.inner.group_metadata())

    def close(self) -> None:
        self._producer.close(timeout=1)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, consumer: KafkaPythonConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.rebalances += 1


class KafkaPythonConsumer:
    def __init__(self, bootstrap_servers: str, settings: ConsumerSettings) -> None:
        self.rebalances = 0
        self.inner = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=settings.group,
            group_instance_id=settings.instance_id,
            auto_offset_reset=settings.reset,
            isolation_level="read_committed" if settings.committed_only else "read_uncommitted",
            fetch_min_bytes=settings.min_bytes,
            fetch_max_wait_ms=settings.max_wait_ms,
            fetch_max_bytes=settings.max_bytes,
            max_partition_fetch_bytes=settings.partition_max_bytes,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            partition_assignment_strategy=[_ASSIGNORS[name] for name in settings.strategies],
            enable_auto_commit=settings.auto_commit,
            metadata_max_age_ms=500,
        )
        self._auto_commit = settings.auto_commit
        self._subscribed = False

    def subscribe(self, *topics: str) -> None:
        self._subscribed = True
        self.inner.subscribe(list(topics), listener=_Listener(self))

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self.inner.assign([TopicPartition(*partition) for partition in positions])
        for partition, offset in positions.items():
            self.seek(partition, offset)

    def poll(self, seconds: float = 0.05) -> list[Record]:
        if self._subscribed and not self.inner.assignment():
            seconds = max(seconds, _JOIN_SECONDS)
        with _refusals():
            taken = self.inner.poll(timeout_ms=int(seconds * 1000))
        return [_record(message) for messages in taken.values() for message in messages]

    def assignment(self) -> set[Partition]:
        return {Partition(*found) for found in self.inner.assignment()}

    def position(self, partition: Partition) -> int:
        with _refusals():
            return self.inner.position(TopicPartition(*partition))

    def seek(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(*partition)
        if offset == START:
            self.inner.seek_to_beginning(place)
        elif offset == END:
            self.inner.seek_to_end(place)
        else:
            self.inner.seek(place, offset)

    def pause(self, partition: Partition) -> None:
        self.inner.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        self.inner.resume(TopicPartition(*partition))

    def commit(self, offsets: Mapping[Partition, tuple[int, str]] | None = None) -> None:
        rows = None
        if offsets is not None:
            rows = {TopicPartition(*partition): OffsetAndMetadata(*given) for partition, given in offsets.items()}
        with _refusals():
            self.inner.commit(rows)

    def committed(self, partition: Partition) -> int | None:
        with _refusals():
            return self.inner.committed(TopicPartition(*partition))

    def ends(self, partition: Partition) -> tuple[int, int]:
        place = TopicPartition(*partition)
        with _refusals():
            return self.inner.beginning_offsets([place])[place], self.inner.end_offsets([place])[place]

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        place = TopicPartition(*partition)
        with _refusals():
            found = self.inner.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else found.offset

    def close(self) -> None:
        self.inner.close(autocommit=self._auto_commit)


def _record(message: Any) -> Record:
    return Record(
        Partition(message.topic, message.partition),
        message.offset,
        message.key,
        message.value,
        list(message.headers),
        message.timestamp,
    )


class KafkaPythonAdmin:
    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        topic = {"num_partitions": partitions, "replication_factor": replicas, "configs": dict(config or {})}
        with _refusals():
            self._admin.create_topics({name: topic}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with _refusals():
            self._admin.delete_topics([name])

    def topics(self) -> set[str]:
        with _refusals():
            return set(self._admin.list_topics())

    def partitions(self, topic: str) -> list[int]:
        with _refusals():
            described = self._admin.describe_topics([topic])
        return sorted(partition["partition_index"] for found in described for partition in found["partitions"])

    def add_partitions(self, topic: str, total: int) -> None:
        with _refusals():
            self._admin.create_partitions({topic: total})

    def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, Any]:
        with _refusals():
            answer = self._admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return answer[kind.name.lower()][name]

    def config(self, topic: str) -> dict[str, tuple[str, bool]]:
        entries = self._configs(ConfigResourceType.TOPIC, topic)
        return {
            name: (entry["value"], entry["config_source"] == "DYNAMIC_TOPIC_CONFIG") for name, entry in entries.items()
        }

    def broker_config(self) -> dict[str, str]:
        _, (broker, *_) = self.cluster()
        return {name: entry["value"] for name, entry in self._configs(ConfigResourceType.BROKER, str(broker)).items()}

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        configs = {name: ("DELETE" if value is None else "SET", value) for name, value in changes.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)
        with _refusals():
            self._admin.alter_configs([resource], raise_on_unknown=False)

    def delete_records(self, partition: Partition, before: int) -> int:
        place = TopicPartition(*partition)
        with _refusals():
            return self._admin.delete_records({place: before})[place]["low_watermark"]

    def cluster(self) -> tuple[str, list[int]]:
        with _refusals():
            described = self._admin.describe_cluster()
        return described["cluster_id"], [broker["broker_id"] for broker in described["brokers"]]

    def groups(self) -> set[str]:
        with _refusals():
            return {group["group_id"] for group in self._admin.list_groups()}

    def group(self, group: str) -> Group:
        with _refusals():
            described = self._admin.describe_groups([group])[group]
        return Group(
            described["group_state"],
            described["protocol_data"],
            [member["member_id"] for member in described["members"]],
        )

    def delete_group(self, group: str) -> None:
        with _refusals():
            _check(self._admin.delete_groups([group])[group])

    def group_offsets(self, group: str) -> dict[Partition, tuple[int, str]]:
        with _refusals():
            offsets = self._admin.list_group_offsets(group)[group]
        return {Partition(*place): (found.offset, found.metadata) for place, found in offsets.items()}

    def set_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        rows = {TopicPartition(*partition): OffsetAndMetadata(offset, "") for partition, offset in offsets.items()}
        with _refusals():
            for error in self._admin.alter_group_offsets(group, rows).values():
                _check(error)

    def delete_group_offsets(self, group: str, partition: Partition) -> None:
        with _refusals():
            for error in self._admin.delete_group_offsets(group, [TopicPartition(*partition)]).values():
                _check(error)

    def remove_member(self, group: str, member_id: str) -> None:
        with _refusals():
            for error in self._admin.remove_group_members(group, [MemberToRemove(member_id=member_id)]).values():
                _check(error)

    def groups_in_state(self, state: str) -> set[str]:
        with _refusals():
            return {group["group_id"] for group in self._admin.list_groups(states_filter=[state])}

    def list_offset(self, partition: Partition, timestamp: int, *, committed_only: bool = False) -> int:
        place = TopicPartition(*partition)
        level = "read_committed" if committed_only else "read_uncommitted"
        with _refusals():
            return self._admin.list_partition_offsets({place: timestamp}, isolation_level=level)[place].offset

    def close(self) -> None:
        self._admin.close()


class KafkaPythonClient:
    name = "kafka-python"
    lacks: Mapping[Ability, str] = {
        Ability.ALL_CODECS: "its codecs other than gzip need packages that are not installed here",
        Ability.REBALANCES: "version 3.0.12 may hang when a poll ends in the middle of a rebalance, on every engine",
        Ability.COOPERATIVE: "as above",
        Ability.NEW_GROUP_PROTOCOL: "it speaks the classic protocol only",
    }

    def producer(self, bootstrap_servers: str, settings: ProducerSettings) -> KafkaPythonProducer:
        return KafkaPythonProducer(bootstrap_servers, settings)

    def consumer(self, bootstrap_servers: str, settings: ConsumerSettings) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(bootstrap_servers, settings)

    def admin(self, bootstrap_servers: str) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(bootstrap_servers)
