"""Fetch"""

from __future__ import annotations

import os
import struct
import threading
import time

import pytest

from agl_stream.infra.embedded.log.batch import read_header
from tests.conformance.kafka.clients.port import END, START, Partition
from tests.conformance.kafka.clients.wire import batch
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, refusal, take, take_new, unique

OFFSET_OUT_OF_RANGE = 1
NO_OFFSET = -168
"""librdkafka's own code for a position that has no reset policy."""


@pytest.mark.parametrize("start", [0, 3, 50, 99])
def test_reading_begins_at_the_offset_also_in_the_middle_of_a_batch(cluster, use, start):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 100)
    consumer = use.consumer()
    consumer.assign({partition: start})
    assert offsets(take(consumer, 100 - start)) == list(range(start, 100))


def test_reading_from_the_beginning_and_from_the_end(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"old"] * 3)
    first, last = use.consumer(), use.consumer()
    first.assign({partition: START})
    last.assign({partition: END})
    assert offsets(take(first, 3)) == [0, 1, 2]
    assert {record.value for record in take_new(cluster, last, partition)} == {b"new"}


def test_reading_from_a_time(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 1_000_000
    for number in range(10):
        cluster.write(partition, [b"x"], timestamp_ms=start_ms + number * 1_000)
    consumer = use.consumer()
    consumer.assign({partition: START})
    consumer.seek(partition, consumer.offset_at(partition, start_ms + 6_500))
    assert offsets(take(consumer, 3)) == [7, 8, 9]


def test_seeking_back_and_forth(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 30)
    consumer = use.consumer()
    consumer.assign({partition: 20})
    assert offsets(take(consumer, 10)) == list(range(20, 30))
    consumer.seek(partition, 5)
    assert offsets(take(consumer, 25)) == list(range(5, 30))
    consumer.seek(partition, 28)
    assert offsets(take(consumer, 2)) == [28, 29]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(cluster, use):
    topic = cluster.topic(2)
    paused, other = Partition(topic, 0), Partition(topic, 1)
    consumer = use.consumer()
    consumer.assign({paused: START, other: START})
    consumer.poll(0.05)
    consumer.pause(paused)
    cluster.write(paused, [b"x"] * 5)
    cluster.write(other, [b"y"] * 5)
    records = take(consumer, 5) + consumer.poll(0.3)
    assert {record.partition for record in records} == {other}
    consumer.resume(paused)
    assert offsets(take(consumer, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"old"), ("latest", b"new")])
def test_a_position_beyond_the_end_is_reset_by_the_policy(cluster, use, reset, expected):
    partition = cluster.partition()
    cluster.write(partition, [b"old"] * 3)
    consumer = use.consumer(reset=reset)
    consumer.assign({partition: 1_000})
    assert take_new(cluster, consumer, partition)[0].value == expected


def test_a_position_beyond_the_end_is_an_error_without_a_policy(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 3)
    consumer = use.consumer(reset="none")
    consumer.assign({partition: 1_000})

    def polled():
        for _ in range(100):
            consumer.poll(0.1)

    assert refusal(polled) in (OFFSET_OUT_OF_RANGE, NO_OFFSET, -140)


def test_a_position_before_the_start_is_reset_by_the_policy(cluster, use):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 20)
    cluster.admin.delete_records(partition, 12)
    consumer = use.consumer(reset="earliest")
    consumer.assign({partition: 4})
    assert offsets(take(consumer, 8)) == list(range(12, 20))


def test_one_batch_over_the_fetch_limits_is_read_all_the_same(cluster, use):
    partition = cluster.partition()
    values = [os.urandom(120_000) for _ in range(3)]
    for value in values:
        cluster.write(partition, [value])
    consumer = use.consumer(max_bytes=2_000, partition_max_bytes=1_000)
    consumer.assign({partition: START})
    assert [record.value for record in take(consumer, 3)] == values


def test_many_partitions_are_read_completely(cluster, use):
    topic = cluster.topic(40)
    for number in range(40):
        cluster.write(Partition(topic, number), [b"%d" % number] * 5)
    consumer = use.consumer(max_bytes=1_000)
    consumer.assign({Partition(topic, number): START for number in range(40)})
    records = take(consumer, 200)
    assert len(records) == 200
    assert all(record.value == b"%d" % record.partition.number for record in records)


def test_a_waiting_consumer_gets_a_record_when_it_arrives(cluster, use):
    """Long polls are answered by the arrival, not by their timeout."""
    partition = cluster.partition()
    consumer = use.consumer(max_wait_ms=5_000)
    consumer.assign({partition: START})
    cluster.write(partition, [b"first"])
    take(consumer, 1)
    seconds = []
    for _ in range(5):
        consumer.poll(0.05)  # a fetch is on its way when this returns
        began = time.perf_counter()
        cluster.write(partition, [b"x"])
        take(consumer, 1)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 1.0, seconds


def test_what_is_appended_later_comes_in_later_fetches(cluster, use):
    """Also for a client that fetches in sessions and names only the partitions that have changed."""
    topic = cluster.topic(3)
    consumer = use.consumer()
    consumer.assign({Partition(topic, number): START for number in range(3)})
    for turn in range(6):
        partition = Partition(topic, turn % 3)
        cluster.write(partition, [b"turn %d" % turn])
        (found,) = take(consumer, 1)
        assert (found.partition, found.value) == (partition, b"turn %d" % turn)


# The protocol itself


def test_a_fetch_waits_for_its_time_when_there_is_nothing(cluster, wire):
    partition = cluster.partition()
    began = time.monotonic()
    answer = wire.fetch_one(partition, max_wait=400)
    assert 0.35 < time.monotonic() - began < 3
    assert (answer["error_code"], bytes(answer["records"] or b""), answer["high_watermark"]) == (0, b"", 0)


def test_a_fetch_waits_until_there_are_as_many_bytes_as_it_wants(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x" * 100])

    def write_later():
        time.sleep(0.4)
        cluster.write(partition, [b"y" * 5_000])

    writer = threading.Thread(target=write_later)
    began = time.monotonic()
    writer.start()
    answer = wire.fetch_one(partition, max_wait=10_000, min_bytes=5_000)
    seconds = time.monotonic() - began
    writer.join()
    assert 0.35 < seconds < 5
    assert len(answer["records"]) > 5_000


def test_a_fetch_of_several_partitions_keeps_to_its_bytes_but_for_the_first_batch(cluster, wire):
    topic = cluster.topic(4)
    partitions = [Partition(topic, number) for number in range(4)]
    for partition in partitions:
        cluster.write(partition, [os.urandom(10_000)])
    answer = wire.fetch(*partitions, max_bytes=25_000)
    sizes = [len(found["records"] or b"") for found in answer["responses"][0]["partitions"]]
    assert sizes[0] > 10_000 and sum(sizes) <= 35_000
    (only, *others) = wire.fetch(*partitions, max_bytes=10)["responses"][0]["partitions"]
    assert len(only["records"]) > 10_000
    assert [len(found["records"] or b"") for found in others] == [0, 0, 0]


def test_a_fetch_keeps_to_the_bytes_of_its_partition(cluster, wire):
    partition = cluster.partition()
    for _ in range(5):
        cluster.write(partition, [os.urandom(1_000)])
    records = wire.fetch_one(partition, partition_max_bytes=2_500)["records"]
    assert 1_000 < len(records) <= 2_500


def test_fetched_batches_carry_the_offsets_that_the_broker_gave(cluster, wire):
    partition = cluster.partition()
    for values in ([b"a", b"b"], [b"c"]):
        assert wire.produce(partition, batch(*values))["error_code"] == 0
    records = bytes(wire.fetch_one(partition)["records"])
    first = read_header(records)
    second = read_header(records, first.size_bytes)
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)


@pytest.mark.parametrize("offset", [-1, 4, 1_000])
def test_a_fetch_outside_of_the_log_is_out_of_range(cluster, wire, offset):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 3)
    answer = wire.fetch_one(partition, offset=offset)
    assert (answer["error_code"], bytes(answer["records"] or b"")) == (OFFSET_OUT_OF_RANGE, b"")


def test_a_fetch_at_the_end_is_empty(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x"] * 3)
    answer = wire.fetch_one(partition, offset=3)
    assert (answer["error_code"], answer["high_watermark"], answer["log_start_offset"]) == (0, 3, 0)
    assert not answer["records"]


def test_a_fetch_of_an_unknown_partition_says_so(cluster, wire):
    topic = cluster.topic()
    assert wire.fetch_one(Partition(topic, 5))["error_code"] == 3
    assert wire.fetch_one(Partition(unique("missing")))["error_code"] == 3


def test_a_fetch_with_an_epoch_from_the_future_is_refused(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x"])
    assert wire.fetch_one(partition, current_leader_epoch=50)["error_code"] == 75


@case(differs="no fetch sessions: the answer's session id is 0, by which clients know that each fetch names everything")
def test_a_fetch_session_is_opened_or_declined(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x"])
    answer = wire.fetch(partition, session_epoch=0)
    assert answer["error_code"] == 0 and answer["responses"][0]["partitions"][0]["records"]
    assert (answer["session_id"] != 0) == cluster.capabilities.fetch_sessions


def test_requests_sent_at_once_are_answered_in_their_order(cluster, wire):
    partition = cluster.partition()
    cluster.write(partition, [b"x"])
    for _ in range(20):
        wire.send("metadata", 4, topics=[{"name": partition.topic}], allow_auto_topic_creation=False)
    for expected in range(1, 21):
        (size,) = struct.unpack(">i", wire._exactly(4))
        assert struct.unpack_from(">i", wire._exactly(size))[0] == expected
