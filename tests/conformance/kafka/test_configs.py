"""Settings and deleted records"""

from __future__ import annotations

import pytest

from tests.conformance.kafka.clients.port import Ability
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, refusal, take, unique, wait_until

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_CONFIG, POLICY_VIOLATION = 1, 3, 40, 44


def test_settings_are_described_with_where_they_come_from(cluster, use):
    topic = cluster.topic(cleanup_policy="compact", retention_ms="12345")
    described = use.admin().config(topic)
    assert described["cleanup.policy"] == ("compact", True)
    assert described["retention.ms"] == ("12345", True)
    value, of_topic = described["segment.bytes"]
    assert int(value) > 0 and not of_topic


@case(without={"kafka-python": "its admin client drops the error of the answer"})
def test_settings_of_a_missing_topic_cannot_be_described(cluster, use):
    assert refusal(use.admin().config, unique("missing")) == UNKNOWN_TOPIC


@case(Ability.INCREMENTAL_CONFIGS)
def test_single_settings_are_changed_and_reset(cluster, use):
    topic, admin = cluster.topic(retention_ms="12345"), use.admin()
    admin.set_config(topic, {"retention.ms": "999", "segment.bytes": "2000000"})
    wait_until(lambda: admin.config(topic)["retention.ms"] == ("999", True), what="the change")
    assert admin.config(topic)["segment.bytes"] == ("2000000", True)
    admin.set_config(topic, {"retention.ms": None})
    wait_until(lambda: not admin.config(topic)["retention.ms"][1], what="the return to the default")
    assert admin.config(topic)["segment.bytes"] == ("2000000", True)


@pytest.mark.parametrize("bad", [{"retention.ms": "-7"}, {"no.such.setting": "1"}], ids=["value", "name"])
@case(Ability.INCREMENTAL_CONFIGS, without={"kafka-python": "its admin client drops the error of the answer"})
def test_a_bad_setting_changes_nothing(cluster, use, bad):
    topic, admin = cluster.topic(retention_ms="12345"), use.admin()
    assert refusal(admin.set_config, topic, {"segment.bytes": "2000000", **bad}) == INVALID_CONFIG
    described = cluster.admin.config(topic)
    assert described["retention.ms"] == ("12345", True) and not described["segment.bytes"][1]


@case(Ability.INCREMENTAL_CONFIGS)
def test_a_changed_limit_is_obeyed(cluster, use):
    partition = cluster.partition()
    use.admin().set_config(partition.topic, {"max.message.bytes": "2000"})
    producer = use.producer()

    def refused():
        producer.send(partition, b"x" * 5_000)
        (outcome,) = producer.flush()
        return not isinstance(outcome, int)

    wait_until(refused, what="the refusal")


def test_the_broker_describes_its_settings(cluster, use):
    settings = use.admin().broker_config()
    assert int(settings["message.max.bytes"]) > 1_000_000
    assert int(settings["group.min.session.timeout.ms"]) == cluster.capabilities.session_timeout_ms


def test_deleted_records_are_gone_for_every_reader(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 10)
    assert use.admin().delete_records(partition, 4) == 4
    consumer = use.consumer()
    consumer.assign({partition: 0})
    assert offsets(take(consumer, 6)) == [4, 5, 6, 7, 8, 9]
    assert cluster.ends(partition) == (4, 10)


def test_everything_can_be_deleted_and_offsets_go_on(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 10)
    assert use.admin().delete_records(partition, -1) == 10
    assert cluster.write(partition, [b"new"]) == [10]
    assert cluster.ends(partition) == (10, 11)
    assert use.admin().delete_records(partition, 3) == 10


def test_records_beyond_the_end_cannot_be_deleted(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 3)
    assert refusal(use.admin().delete_records, partition, 4) == OFFSET_OUT_OF_RANGE
    assert cluster.ends(partition) == (0, 3)


def test_records_of_a_compacted_topic_cannot_be_deleted(cluster, use):
    partition = cluster.partition(cleanup_policy="compact")
    cluster.write(partition, [b"x"] * 3, key=b"key")
    assert refusal(use.admin().delete_records, partition, 2) == POLICY_VIOLATION
    assert cluster.ends(partition) == (0, 3)


# The protocol itself


def _alter(wire, topic, *operations):
    """(name, operation, value); operations are 0 set, 1 delete, 2 append, 3 subtract"""
    configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in operations]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    answer = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    return answer["responses"][0]["error_code"]


def test_lists_take_and_lose_single_entries(cluster, wire):
    topic = cluster.topic(cleanup_policy="compact")
    assert _alter(wire, topic, ("cleanup.policy", 2, "delete")) == 0
    wait_until(lambda: set(cluster.admin.config(topic)["cleanup.policy"][0].split(",")) == {"compact", "delete"})
    assert _alter(wire, topic, ("cleanup.policy", 3, "compact")) == 0
    wait_until(lambda: cluster.admin.config(topic)["cleanup.policy"][0] == "delete")


def test_entries_cannot_be_appended_to_what_is_no_list(cluster, wire):
    topic = cluster.topic()
    assert _alter(wire, topic, ("retention.ms", 2, "5")) == INVALID_CONFIG


def test_settings_of_a_missing_topic_cannot_be_changed(cluster, wire):
    assert _alter(wire, unique("missing"), ("retention.ms", 0, "5")) == UNKNOWN_TOPIC


def test_records_of_a_missing_partition_cannot_be_deleted(cluster, wire):
    topic = cluster.topic()
    rows = [{"partition_index": 5, "offset": 0}]
    answer = wire.call("delete_records", 2, topics=[{"name": topic, "partitions": rows}], timeout=5_000)
    assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC
