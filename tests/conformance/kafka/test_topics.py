"""Topics and their settings through three admin clients."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient


def _refusal(future) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        future.result(10)
    return caught.value.args[0]


def test_confluent_creates_a_topic(cluster, unique):
    topic = cluster.create_topic(4)
    described = cluster.admin.list_topics(topic, 5).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2, 3]
    assert {partition.leader for partition in described.partitions.values()} <= set(cluster.admin.list_topics().brokers)


async def test_aiokafka_creates_a_topic(cluster, unique):
    topic = unique("topic")
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(topic, 3, 1)])
        (described,) = await admin.describe_topics([topic])
    finally:
        await admin.close()
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]


def test_kafka_python_creates_and_describes_a_topic(cluster, unique):
    topic = unique("topic")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        (described,) = admin.describe_topics([topic])
    finally:
        admin.close()
    assert len(described["partitions"]) == 2


def test_a_topic_exists_once(cluster):
    topic = cluster.create_topic()
    again = cluster.admin.create_topics([NewTopic(topic, 4, 1)])[topic]
    assert _refusal(again).code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        ("no spaces", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("..", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("zero-partitions", 0, {}, KafkaError.INVALID_PARTITIONS),
        ("unknown-setting", 1, {"no.such.setting": "1"}, KafkaError.INVALID_CONFIG),
        ("bad-value", 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("bad-policy", 1, {"cleanup.policy": "burn"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_impossible_topics_are_refused(cluster, name, partitions, config, code):
    refused = cluster.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name]
    assert _refusal(refused).code() == code
    assert name not in cluster.admin.list_topics(timeout=5).topics


def test_more_replicas_than_brokers_are_refused(cluster, unique):
    topic = unique("topic")
    refused = cluster.admin.create_topics([NewTopic(topic, 1, 50)])[topic]
    assert _refusal(refused).code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_validate_only_creates_nothing(cluster, unique):
    topic = unique("topic")
    cluster.admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(10)
    assert topic not in cluster.admin.list_topics(timeout=5).topics


def test_producing_creates_a_topic_where_the_setting_allows_it(cluster, unique):
    topic = unique("topic")
    cluster.produce(topic, [b"x"] * 20)
    assert len(cluster.read_all(topic)) == 20


async def test_aiokafka_producing_creates_a_topic(cluster, unique):
    topic = unique("topic")
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x")
    finally:
        await producer.stop()
    assert [message.value() for message in cluster.read_all(topic)] == [b"x"]


def test_settings_are_described_and_changed(cluster, wait_until):
    topic = cluster.create_topic(cleanup_policy="compact", retention_ms="12345")
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def settings():
        return cluster.admin.describe_configs([resource])[resource].result(10)

    before = settings()
    assert (before["cleanup.policy"].value, before["retention.ms"].value) == ("compact", "12345")
    assert not before["retention.ms"].is_default and before["segment.bytes"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "999", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    cluster.admin.incremental_alter_configs([change])[change].result(10)
    wait_until(lambda: settings()["retention.ms"].value == "999", what="the change")
    assert set(settings()["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    undo = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)],
    )
    cluster.admin.incremental_alter_configs([undo])[undo].result(10)
    wait_until(lambda: settings()["retention.ms"].is_default, what="the return to the default")


def test_a_bad_setting_changes_nothing(cluster):
    topic = cluster.create_topic(retention_ms="12345")
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", "-7", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    refused = cluster.admin.incremental_alter_configs([change])[change]
    assert _refusal(refused).code() == KafkaError.INVALID_CONFIG
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = cluster.admin.describe_configs([resource])[resource].result(10)
    assert settings["retention.ms"].value == "12345" and settings["segment.bytes"].is_default


def test_partitions_can_be_added_and_not_taken(cluster):
    topic = cluster.create_topic()
    cluster.produce(topic, [b"before"])
    cluster.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    assert len(cluster.admin.list_topics(topic, 5).topics[topic].partitions) == 3
    refused = cluster.admin.create_partitions([NewPartitions(topic, 2)])[topic]
    assert _refusal(refused).code() == KafkaError.INVALID_PARTITIONS
    producer = Producer(cluster.config())
    producer.produce(topic, b"after", partition=2)
    assert producer.flush(10) == 0
    assert sorted(message.value() for message in cluster.read_all(topic)) == [b"after", b"before"]


def test_a_deleted_topic_is_gone_and_its_name_starts_empty(cluster, wait_until):
    topic = cluster.create_topic()
    cluster.produce(topic, [b"old"] * 5)
    cluster.admin.delete_topics([topic])[topic].result(10)
    wait_until(lambda: topic not in cluster.admin.list_topics(timeout=5).topics, what="the deletion")
    refused = cluster.admin.delete_topics([topic])[topic]
    assert _refusal(refused).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    cluster.create_topic(name=topic)
    assert cluster.watermarks(topic) == (0, 0)


def test_the_cluster_describes_itself(cluster):
    described = cluster.admin.describe_cluster().result(10)
    assert described.cluster_id and described.controller.id in {node.id for node in described.nodes}
    broker = ConfigResource(ResourceType.BROKER, str(described.controller.id))
    settings = cluster.admin.describe_configs([broker])[broker].result(10)
    assert int(settings["message.max.bytes"].value) > 0
