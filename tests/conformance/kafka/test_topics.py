"""Topics"""

from __future__ import annotations

import pytest

from tests.conformance.kafka.clients.port import Partition
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import refusal, take, unique, wait_until

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_REPLICAS, INVALID_CONFIG = 3, 17, 36, 37, 38, 40


def _exists(admin, topic, partitions):
    wait_until(lambda: admin.partitions(topic) == list(range(partitions)), what=f"topic {topic}")


def test_a_topic_is_created_with_its_partitions(cluster, use):
    topic, admin = unique("topic"), use.admin()
    admin.create_topic(topic, 4)
    _exists(admin, topic, 4)
    assert topic in admin.topics()


def test_a_topic_exists_once(cluster, use):
    topic = cluster.topic()
    assert refusal(use.admin().create_topic, topic, 4) == TOPIC_EXISTS
    assert cluster.admin.partitions(topic) == [0]


@pytest.mark.parametrize("name", ["no spaces", "..", ".", "x" * 250, "slash/ed", "naïve"])
def test_impossible_names_are_refused(cluster, use, name):
    assert refusal(use.admin().create_topic, name) == INVALID_TOPIC
    assert name not in cluster.admin.topics()


@pytest.mark.parametrize("partitions", [0, -2])
@case(without={"kafka-python": "it takes 0 for the default", "confluent-kafka": "it refuses negative counts itself"})
def test_impossible_numbers_of_partitions_are_refused(cluster, use, partitions):
    topic = unique("topic")
    assert refusal(use.admin().create_topic, topic, partitions) == INVALID_PARTITIONS
    assert topic not in cluster.admin.topics()


@pytest.mark.parametrize(
    "config",
    [
        {"no.such.setting": "1"},
        {"retention.ms": "soon"},
        {"retention.ms": "-7"},
        {"cleanup.policy": "burn"},
        {"max.message.bytes": "-1"},
    ],
    ids=["unknown", "not-a-number", "below-the-least", "not-a-policy", "negative"],
)
def test_impossible_settings_are_refused(cluster, use, config):
    topic = unique("topic")
    assert refusal(use.admin().create_topic, topic, config=config) == INVALID_CONFIG
    assert topic not in cluster.admin.topics()


def test_more_replicas_than_brokers_are_refused(cluster, use):
    topic = unique("topic")
    assert refusal(use.admin().create_topic, topic, 1, 50) == INVALID_REPLICAS
    assert topic not in cluster.admin.topics()


def test_a_creation_on_trial_creates_nothing(cluster, use):
    topic, admin = unique("topic"), use.admin()
    admin.create_topic(topic, validate_only=True)
    assert refusal(admin.create_topic, topic, config={"cleanup.policy": "burn"}, validate_only=True) == INVALID_CONFIG
    assert topic not in cluster.admin.topics()


def test_partitions_can_be_added_and_not_taken(cluster, use):
    topic, admin = cluster.topic(2), use.admin()
    cluster.write(Partition(topic, 1), [b"before"])
    admin.add_partitions(topic, 5)
    _exists(admin, topic, 5)
    assert refusal(admin.add_partitions, topic, 4) == INVALID_PARTITIONS
    assert refusal(admin.add_partitions, topic, 5) == INVALID_PARTITIONS
    producer = use.producer()
    producer.send(Partition(topic, 4), b"after")
    assert producer.flush() == [0]
    assert cluster.values(Partition(topic, 1)) + cluster.values(Partition(topic, 4)) == [b"before", b"after"]


def test_partitions_cannot_be_added_to_what_does_not_exist(use, cluster):
    assert refusal(use.admin().add_partitions, unique("missing"), 5) == UNKNOWN_TOPIC


def test_a_deleted_topic_is_gone(cluster, use):
    topic, admin = cluster.topic(), use.admin()
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.topics(), what="the deletion")
    assert refusal(admin.delete_topic, topic) == UNKNOWN_TOPIC


def test_a_name_that_is_used_again_begins_empty(cluster, use):
    topic, admin = cluster.topic(2), use.admin()
    cluster.write(Partition(topic), [b"old"] * 5)
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.topics(), what="the deletion")
    admin.create_topic(topic, 3)
    _exists(admin, topic, 3)
    assert cluster.ends(Partition(topic)) == (0, 0)
    cluster.write(Partition(topic), [b"new"])
    consumer = use.consumer()
    consumer.assign({Partition(topic): 0})
    assert [record.value for record in take(consumer, 1)] == [b"new"]


def test_the_cluster_describes_itself(cluster, use):
    cluster_id, brokers = use.admin().cluster()
    assert cluster_id and len(brokers) == 1
    assert use.admin().cluster() == (cluster_id, brokers)


# The protocol itself


def test_metadata_of_a_missing_topic_says_so_and_creates_nothing(cluster, wire):
    topic = unique("missing")
    answer = wire.call("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False)
    assert [found["error_code"] for found in answer["topics"]] == [UNKNOWN_TOPIC]
    assert topic not in cluster.admin.topics()


def test_asking_for_a_topic_creates_it_only_where_the_setting_allows_it(cluster, wire):
    topic = unique("topic")
    allowed = cluster.admin.broker_config()["auto.create.topics.enable"] == "true"
    for _ in range(3):
        wire.call("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=True)
    if allowed:
        wait_until(lambda: topic in cluster.admin.topics(), what="the topic")
    else:
        assert topic not in cluster.admin.topics()


def test_metadata_names_the_broker_by_the_address_that_clients_use(cluster, wire):
    topic = cluster.topic(3)
    answer = wire.call("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False)
    (broker,) = answer["brokers"]
    assert f"{broker['host']}:{broker['port']}" == cluster.bootstrap_servers
    (found,) = answer["topics"]
    leaders = {(partition["leader_id"], *partition["isr_nodes"]) for partition in found["partitions"]}
    assert leaders == {(broker["node_id"], broker["node_id"])}


def test_metadata_of_no_topics_is_about_the_brokers_only(cluster, wire):
    cluster.topic()
    answer = wire.call("metadata", 8, topics=[], allow_auto_topic_creation=False)
    assert answer["topics"] == [] and len(answer["brokers"]) == 1


def test_one_bad_topic_of_a_request_does_not_stop_the_others(cluster, wire):
    good, bad = unique("topic"), "not a name"
    wanted = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in (good, bad)
    ]
    answer = wire.call("create_topics", 5, topics=wanted, timeout=10_000, validate_only=False)
    assert {found["name"]: found["error_code"] for found in answer["topics"]} == {good: 0, bad: INVALID_TOPIC}


def test_api_versions_name_every_request_that_the_clients_make(cluster, wire):
    answer = wire.call("api_versions", 3, client_software_name="wire", client_software_version="1")
    spoken = {api["api_key"]: (api["min_version"], api["max_version"]) for api in answer["api_keys"]}
    used = {0: 8, 1: 12, 2: 7, 3: 8, 8: 7, 9: 7, 10: 2, 11: 5, 12: 3, 13: 3, 14: 3, 18: 3, 19: 5, 22: 4, 24: 3, 26: 3}
    assert all(spoken[key][0] <= version <= spoken[key][1] for key, version in used.items())
