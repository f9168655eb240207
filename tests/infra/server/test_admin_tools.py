"""What administrators' tools ask for, with kafka-python's and confluent-kafka's admin clients as the tools."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    NewTopic,
    ResourcePattern,
    ResourceType,
)
from kafka.admin._transactions import AbortTransactionSpec
from kafka.errors import (
    InvalidReplicationAssignmentError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SecurityDisabledError,
    TransactionalIdNotFoundError,
)
from kafka.structs import OffsetAndMetadata

from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.testing import BrokerThread


@pytest.fixture(scope="module")
def admin(bootstrap_servers) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def topic(admin) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 2, 1)])
    return name


def send(bootstrap_servers: str, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"value-%d" % number, partition=partition)
    assert producer.flush(10) == 0


@pytest.fixture
def open_transaction(bootstrap_servers, topic) -> Iterator[tuple[str, Producer]]:
    """A transaction with one record in partition 1, neither committed nor aborted."""
    name = f"transaction-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=1)
    producer.flush(10)
    yield name, producer


def test_log_dirs_tell_the_folder_its_room_and_the_bytes_of_partitions(admin, topic, bootstrap_servers, broker):
    send(bootstrap_servers, topic, 10)
    ((found,),) = (answer["log_dirs"] for answer in admin.describe_log_dirs())
    assert found["log_dir"] == str(broker.data_dir / "broker")
    assert found["total_bytes"] > found["usable_bytes"] > 0
    (ours,) = (entry for entry in found["topics"] if entry["name"] == topic)
    sizes = {entry["partition_index"]: entry["partition_size"] for entry in ours["partitions"]}
    assert sizes[0] > 100 and sizes[1] == 0

    ((only,),) = (answer["log_dirs"] for answer in admin.describe_log_dirs({topic: [1], "missing": [0]}))
    assert [(e["name"], [p["partition_index"] for p in e["partitions"]]) for e in only["topics"]] == [(topic, [1])]


def test_replicas_stay_in_the_one_folder(admin, topic, broker):
    here, elsewhere = str(broker.data_dir / "broker"), "/elsewhere"
    (refused,) = admin.alter_replica_log_dirs({(topic, 0, 1): elsewhere}).values()
    (taken,) = admin.alter_replica_log_dirs({(topic, 1, 1): here}).values()
    assert refused is LogDirNotFoundError
    assert taken.errno == 0


def test_leaders_and_replicas_are_where_they_can_only_be(admin, topic):
    response = admin.elect_leaders(0, {topic: [0, 7]}, raise_errors=False)
    (answer,) = response.replica_election_results
    assert {p.partition_id: p.error_code for p in answer.partition_result} == {0: 84, 7: 3}
    partition = Partition(topic, 0)
    assert admin.alter_partition_reassignments({partition: [1]}) == {partition: None}
    assert admin.alter_partition_reassignments({partition: [1, 2]}) == {partition: InvalidReplicationAssignmentError}
    assert admin.alter_partition_reassignments({partition: None}) == {partition: NoReassignmentInProgressError}
    assert admin.list_partition_reassignments() == {}


def test_topics_are_described_page_by_page(admin, topic):
    first = admin.describe_topic_partitions([topic], response_partition_limit=1)
    assert [p["partition_index"] for p in first["topics"][0]["partitions"]] == [0]
    assert first["next_cursor"] == {"topic_name": topic, "partition_index": 1}
    second = admin.describe_topic_partitions([topic], response_partition_limit=1, cursor=first["next_cursor"])
    assert [p["partition_index"] for p in second["topics"][0]["partitions"]] == [1]
    assert second["next_cursor"] is None
    (missing,) = admin.describe_topic_partitions(["never-made"])["topics"]
    assert missing["error_code"] == 3


def test_config_resources_are_listed_and_the_brokers_settings_shown(admin, topic):
    listed = admin.list_config_resources()
    assert topic in listed["topic"] and listed["broker"] == ["1"]
    shown = admin.describe_configs([ConfigResource("BROKER", "1")], config_filter="all")["broker"]["1"]
    assert shown["max.connections"]["value"] == "1000"
    assert int(shown["queued.max.request.bytes"]["value"]) > 0


@pytest.mark.parametrize(
    ("spec", "offset"), [(-1, 10), (-2, 4), (-3, 9), (-4, 4), (-5, -1), (0, 4), (4_000_000_000_000, -1)]
)
def test_offsets_by_every_spec(admin, topic, bootstrap_servers, spec, offset):
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=1_000 + number)
        producer.flush(10)
    partition = Partition(topic, 0)
    admin.delete_records({partition: 4})
    assert admin.list_partition_offsets({partition: spec})[partition].offset == offset


def test_an_open_transaction_is_seen_and_can_be_aborted(admin, topic, bootstrap_servers, open_transaction):
    name, _ = open_transaction
    partition = Partition(topic, 1)
    listed = [t for t in admin.list_transactions(state_filters=["Ongoing"])[1] if t.transactional_id == name]
    assert len(listed) == 1 and name not in str(admin.list_transactions(state_filters=["CompleteCommit"]))
    described = admin.describe_transactions([name])[name]
    assert abs(described.transaction_start_time_ms / 1000 - time.time()) < 30
    assert described.producer_id == listed[0].producer_id
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transactions(["never-used"])

    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert producer.producer_id == described.producer_id and producer.current_transaction_start_offset == 0
    assert admin.list_partition_offsets({partition: -1}, isolation_level="read_committed")[partition].offset == 0
    admin.abort_transaction(AbortTransactionSpec(partition, producer.producer_id, producer.producer_epoch, 0))
    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert producer.current_transaction_start_offset == -1
    assert admin.list_partition_offsets({partition: -1}, isolation_level="read_committed")[partition].offset == 2


def test_groups_and_their_offsets_are_listed_moved_and_deleted(admin, topic, bootstrap_servers):
    send(bootstrap_servers, topic, 10)
    group, partition = f"group-{uuid.uuid4().hex[:8]}", Partition(topic, 0)
    (altered,) = admin.alter_group_offsets(group, {partition: OffsetAndMetadata(3, "note", -1)}).values()
    assert altered.errno == 0
    found = admin.list_group_offsets(group)[group][partition]
    assert (found.offset, found.metadata) == (3, "note")
    assert admin.reset_group_offsets(group, {partition: -1})[partition]["offset"] == 10
    (listed,) = (g for g in admin.list_groups(types_filter=["classic"]) if g["group_id"] == group)
    assert (listed["group_state"], listed["group_type"]) == ("Empty", "classic")
    assert group not in str(admin.list_groups(types_filter=["consumer"]))
    assert group in str(admin.list_groups(states_filter=["empty"]))
    assert group not in str(admin.list_groups(states_filter=["Stable"]))
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    admin.delete_groups([group])
    assert group not in str(admin.list_groups())


def test_there_are_no_users_rights_or_tokens_and_each_answer_says_so(admin, bootstrap_servers):
    anything = ACLFilter(
        None, "*", ACLOperation.ANY, ACLPermissionType.ANY, ResourcePattern(ResourceType.TOPIC, "topic")
    )
    with pytest.raises(SecurityDisabledError, match="knows no users"):
        admin.describe_acls(anything)
    assert admin.describe_user_scram_credentials() == {}
    confluent = AdminClient({"bootstrap.servers": bootstrap_servers})
    asked = confluent.describe_user_scram_credentials(["me"])
    with pytest.raises(KafkaException, match="knows no users"):
        asked["me"].result(10)


@pytest.mark.parametrize(("key", "version", "body"), [(17, 1, b"\0\5PLAIN"), (36, 1, b"\0\0\0\4\0u\0p")])
def test_a_client_that_wants_to_log_in_is_told_that_nobody_can(raw, key, version, body):
    raw.send_frame(struct.pack(">hhih", key, version, 7, -1) + body)
    answer = raw.read_frame()
    assert answer is not None and struct.unpack_from(">ih", answer) == (7, ErrorCode.ILLEGAL_SASL_STATE)


def test_confluents_admin_finds_offsets_clusters_and_groups(bootstrap_servers, topic):
    send(bootstrap_servers, topic, 5)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    partition = TopicPartition(topic, 0)
    assert admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(10).offset == 5
    assert [node.id for node in admin.describe_cluster().result(10).nodes] == [1]
    assert admin.list_consumer_groups().result(10).errors == []
    assert admin.delete_records([TopicPartition(topic, 0, 2)])[partition].result(10).low_watermark == 2


class TestDeleteRecords:
    def test_minus_one_is_the_end_and_beyond_it_is_out_of_range(self, admin, topic, bootstrap_servers):
        send(bootstrap_servers, topic, 10)
        partition = Partition(topic, 0)
        for offset, low in ((4, 4), (2, 4), (-1, 10), (10, 10)):
            assert admin.delete_records({partition: offset})[partition]["low_watermark"] == low
        for offset in (11, -2):
            with pytest.raises(OffsetOutOfRangeError):
                admin.delete_records({partition: offset})
        send(bootstrap_servers, topic, 1)
        assert admin.list_partition_offsets({partition: -1})[partition].offset == 11

    def test_a_topic_that_is_only_compacted_keeps_its_records(self, admin):
        name = f"compacted-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, 1, 1, topic_configs={"cleanup.policy": "compact"})])
        with pytest.raises(PolicyViolationError):
            admin.delete_records({Partition(name, 0): 0})

    def test_a_full_disk_is_answered_and_nothing_is_changed(self, admin, topic, bootstrap_servers, broker, monkeypatch):
        send(bootstrap_servers, topic, 3)
        log = broker.broker.node.catalogue.partition(topic, 0)

        def refuse(offset):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(log, "delete_before", refuse)
            with pytest.raises(Exception, match="KafkaStorageError"):
                admin.delete_records({Partition(topic, 0): 2})
        assert admin.delete_records({Partition(topic, 0): 2})[Partition(topic, 0)]["low_watermark"] == 2

    def test_it_survives_a_restart_and_consumers_below_are_reset(self, tmp_path):
        with BrokerThread(tmp_path) as first:
            AdminClient({"bootstrap.servers": first.bootstrap_servers})
            admin = KafkaAdminClient(bootstrap_servers=first.bootstrap_servers)
            admin.create_topics([NewTopic("topic", 1, 1)])
            send(first.bootstrap_servers, "topic", 10)
            admin.alter_group_offsets("group", {Partition("topic", 0): OffsetAndMetadata(2, "", -1)})
            admin.delete_records({Partition("topic", 0): 6})
            admin.close()
        with BrokerThread(tmp_path) as second:
            consumer = Consumer(
                {
                    "bootstrap.servers": second.bootstrap_servers,
                    "group.id": "group",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            assert consumer.get_watermark_offsets(TopicPartition("topic", 0), 10) == (6, 10)
            consumer.assign([TopicPartition("topic", 0)])
            got = consumer.consume(4, 20)
            consumer.close()
        assert [message.offset() for message in got] == [6, 7, 8, 9]
