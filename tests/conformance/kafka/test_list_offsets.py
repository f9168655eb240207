"""ListOffsets"""

from __future__ import annotations

import time

import pytest

from tests.conformance.kafka.clients.port import Ability, Partition
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import unique


def test_an_empty_partition_begins_and_ends_at_zero(cluster, use):
    assert use.consumer().ends(cluster.partition()) == (0, 0)


def test_the_ends_follow_appends_and_deletions(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 10)
    consumer = use.consumer()
    assert consumer.ends(partition) == (0, 10)
    cluster.admin.delete_records(partition, 4)
    cluster.write(partition, [b"x"])
    assert consumer.ends(partition) == (4, 11)


def test_a_time_gives_the_first_record_that_is_not_older(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    for number in range(20):
        cluster.write(partition, [b"x"], timestamp_ms=start_ms + number * 1_000)
    consumer = use.consumer()
    asked = (-5_000, 0, 1, 11_000, 11_001, 19_000)
    assert [consumer.offset_at(partition, start_ms + milliseconds) for milliseconds in asked] == [0, 0, 1, 11, 12, 19]


def test_a_time_after_the_last_record_gives_nothing(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    cluster.write(partition, [b"x"] * 3, timestamp_ms=start_ms)
    consumer = use.consumer()
    assert consumer.offset_at(partition, start_ms + 1) is None
    assert consumer.offset_at(cluster.partition(), start_ms) is None


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_time_finds_its_record_inside_a_batch(cluster, use, compression):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    producer = use.producer(compression=compression, linger_ms=300)
    for number in range(100):
        producer.send(partition, b"x" * 20, timestamp_ms=start_ms + number)
    producer.flush()
    consumer = use.consumer()
    assert [consumer.offset_at(partition, start_ms + number) for number in (0, 42, 99)] == [0, 42, 99]


def test_times_out_of_order_give_the_first_offset_that_is_not_older(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    for seconds in (10, 50, 20, 40):
        cluster.write(partition, [b"x"], timestamp_ms=start_ms + seconds * 1_000)
    consumer = use.consumer()
    assert [consumer.offset_at(partition, start_ms + seconds * 1_000) for seconds in (5, 15, 45, 50)] == [0, 1, 1, 1]


@case(Ability.OFFSETS_BY_ADMIN)
def test_the_record_of_the_largest_time_is_found(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    admin = use.admin()
    assert admin.list_offset(partition, -3) == -1
    for seconds in (10, 50, 20):
        cluster.write(partition, [b"x"], timestamp_ms=start_ms + seconds * 1_000)
    assert admin.list_offset(partition, -3) == 1
    assert (admin.list_offset(partition, -2), admin.list_offset(partition, -1)) == (0, 3)


@case(
    Ability.OFFSETS_BY_ADMIN, differs="an offset that can be read; Kafka names the one that DeleteRecords has removed"
)
def test_the_largest_time_is_of_what_deletion_has_left(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 3_600_000
    admin = use.admin()
    for seconds in (10, 50, 20, 40, 30):
        cluster.write(partition, [b"x"], timestamp_ms=start_ms + seconds * 1_000)
    cluster.admin.delete_records(partition, 2)
    assert admin.list_offset(partition, -3) == (3 if cluster.capabilities.largest_time_of_what_is_left else 1)


@case(Ability.OFFSETS_BY_ADMIN)
def test_the_end_for_read_committed_is_before_an_open_transaction(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 2)
    producer = use.producer(transactional_id=unique("transaction"))
    producer.begin()
    producer.send(partition, b"open")
    producer.flush()
    admin = use.admin()
    assert admin.list_offset(partition, -1, committed_only=True) == 2
    assert admin.list_offset(partition, -1) == 3
    producer.commit()
    cluster.settle(partition)
    assert admin.list_offset(partition, -1, committed_only=True) == 4


# The protocol itself


def test_an_unknown_partition_has_no_offsets(cluster, wire):
    topic = cluster.topic()
    assert wire.list_offset(Partition(topic, 9), -1)["error_code"] == 3
    assert wire.list_offset(Partition(unique("missing")), -1)["error_code"] == 3


def test_offsets_come_with_their_time_and_epoch(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x"], timestamp_ms=1_700_000_000_000)
    found = wire.list_offset(partition, 1_600_000_000_000)
    assert (found["error_code"], found["offset"], found["leader_epoch"]) == (0, 0, 0)
    assert found["timestamp"] == 1_700_000_000_000
    latest = wire.list_offset(partition, -1)
    assert (latest["offset"], latest["timestamp"]) == (1, -1)


def test_offsets_for_an_epoch_from_the_future_are_refused(cluster, wire):
    partition = cluster.partition()
    assert wire.list_offset(partition, -1, current_leader_epoch=9)["error_code"] == 75
