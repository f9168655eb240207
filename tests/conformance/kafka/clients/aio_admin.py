"""aiokafka's admin client behind the interface of the conformance cases, and what the client cannot do."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.conformance.kafka.clients.aio_loop import check, run
from tests.conformance.kafka.clients.port import Ability, Group, Partition

_SET_BY_TOPIC = 1

LACKS: Mapping[Ability, str] = {
    Ability.COOPERATIVE: "it has no cooperative assignor",
    Ability.NEW_GROUP_PROTOCOL: "it speaks the classic protocol only",
    Ability.OFFSETS_BY_ADMIN: "AIOKafkaAdminClient has no such method",
    Ability.INCREMENTAL_CONFIGS: "AIOKafkaAdminClient has AlterConfigs only, which Kafka 4 has deprecated",
    Ability.GROUP_STATES: "AIOKafkaAdminClient lists groups without their states",
    Ability.DELETE_GROUPS: "AIOKafkaAdminClient has no such method",
    Ability.ALTER_OFFSETS: "AIOKafkaAdminClient has no such method",
    Ability.DELETE_OFFSETS: "AIOKafkaAdminClient has no such method",
    Ability.REMOVE_MEMBERS: "AIOKafkaAdminClient has no such method",
}


class AioAdmin:
    def __init__(self, bootstrap_servers: str) -> None:
        async def start() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
            await admin.start()
            return admin

        self._admin = run(start())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replicas, topic_configs=dict(config or {}))
        answer = run(self._admin.create_topics([topic], validate_only=validate_only))
        ((_, code, *message),) = answer.topic_errors
        check(code, str(message))

    def delete_topic(self, name: str) -> None:
        ((_, code),) = run(self._admin.delete_topics([name])).topic_error_codes
        check(code)

    def topics(self) -> set[str]:
        return set(run(self._admin.list_topics()))

    def partitions(self, topic: str) -> list[int]:
        described = [found for found in run(self._admin.describe_topics()) if found["topic"] == topic]
        return sorted(partition["partition"] for found in described for partition in found["partitions"])

    def add_partitions(self, topic: str, total: int) -> None:
        run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def _configs(self, kind: ConfigResourceType, name: str) -> list[tuple[str, str, int]]:
        (answer,) = run(self._admin.describe_configs([ConfigResource(kind, name)]))
        ((code, message, _, _, entries),) = answer.resources
        check(code, message)
        return [(name, value, source) for name, value, _, source, *_ in entries]

    def config(self, topic: str) -> dict[str, tuple[str, bool]]:
        entries = self._configs(ConfigResourceType.TOPIC, topic)
        return {name: (value, source == _SET_BY_TOPIC) for name, value, source in entries}

    def broker_config(self) -> dict[str, str]:
        _, (broker, *_) = self.cluster()
        return {name: value for name, value, _ in self._configs(ConfigResourceType.BROKER, str(broker))}

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        raise NotImplementedError(LACKS[Ability.INCREMENTAL_CONFIGS])

    def delete_records(self, partition: Partition, before: int) -> int:
        place = TopicPartition(*partition)
        return run(self._admin.delete_records({place: RecordsToDelete(before_offset=before)}))[place]

    def cluster(self) -> tuple[str, list[int]]:
        described = run(self._admin.describe_cluster())
        return described["cluster_id"], [broker["node_id"] for broker in described["brokers"]]

    def groups(self) -> set[str]:
        return {group[0] for group in run(self._admin.list_consumer_groups())}

    def group(self, group: str) -> Group:
        (answer,) = run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, protocol, members, *_),) = answer.groups
        check(code)
        return Group(state, protocol, [member[0] for member in members])

    def delete_group(self, group: str) -> None:
        raise NotImplementedError(LACKS[Ability.DELETE_GROUPS])

    def group_offsets(self, group: str) -> dict[Partition, tuple[int, str]]:
        offsets = run(self._admin.list_consumer_group_offsets(group))
        return {Partition(*place): (found.offset, found.metadata) for place, found in offsets.items()}

    def set_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise NotImplementedError(LACKS[Ability.ALTER_OFFSETS])

    def groups_in_state(self, state: str) -> set[str]:
        raise NotImplementedError(LACKS[Ability.GROUP_STATES])

    def remove_member(self, group: str, member_id: str) -> None:
        raise NotImplementedError(LACKS[Ability.REMOVE_MEMBERS])

    def delete_group_offsets(self, group: str, partition: Partition) -> None:
        raise NotImplementedError(LACKS[Ability.DELETE_OFFSETS])

    def list_offset(self, partition: Partition, timestamp: int, *, committed_only: bool = False) -> int:
        raise NotImplementedError(LACKS[Ability.OFFSETS_BY_ADMIN])

    def close(self) -> None:
        run(self._admin.close())
