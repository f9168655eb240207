"""Produce"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from agl_stream.infra.embedded.log.batch import BatchHeader, build_batch
from tests.conformance.kafka.clients.aio import AiokafkaClient
from tests.conformance.kafka.clients.confluent import ConfluentClient
from tests.conformance.kafka.clients.kafka_python import KafkaPythonClient
from tests.conformance.kafka.clients.port import START, Ability, ConsumerSettings, Partition, matches
from tests.conformance.kafka.clients.wire import batch, record
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, take, unique, wait_until

MESSAGE_TOO_LARGE = 10
BATCH_HEADER_BYTES = 61


def test_keys_values_headers_and_times_come_back_as_they_were_sent(cluster, use):
    partition = cluster.partition()
    start_ms = int(time.time() * 1000) - 60_000
    headers = [("h", b"\x00\xff"), ("empty", b""), ("h", b"2")]
    producer = use.producer()
    for number in range(20):
        producer.send(partition, b"v%d" % number, key=b"k", headers=headers, timestamp_ms=start_ms + number)
    assert producer.flush() == list(range(20))
    records = cluster.read(partition)
    assert [record.value for record in records] == [b"v%d" % number for number in range(20)]
    assert {record.key for record in records} == {b"k"}
    assert [record.timestamp_ms for record in records] == list(range(start_ms, start_ms + 20))
    assert all(record.headers == headers for record in records)


@case(without={"kafka-python": "it reads such headers and does not send them"})
def test_a_header_may_have_no_value(cluster, use):
    partition = cluster.partition()
    producer = use.producer()
    producer.send(partition, b"x", headers=[("n", None), ("n", b"")])
    producer.flush()
    assert cluster.read(partition)[0].headers == [("n", None), ("n", b"")]
    reader = KafkaPythonClient().consumer(cluster.bootstrap_servers, ConsumerSettings())
    reader.assign({partition: START})
    assert take(reader, 1)[0].headers == [("n", None), ("n", b"")]
    reader.close()


def test_null_and_empty_keys_and_values_are_told_apart(cluster, use):
    partition = cluster.partition()
    producer = use.producer()
    for key, value in ((b"tombstone", None), (None, b"no key"), (b"", b"empty key"), (b"empty value", b"")):
        producer.send(partition, value, key=key)
    producer.flush()
    assert [(record.key, record.value) for record in cluster.read(partition)] == [
        (b"tombstone", None),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"empty value", b""),
    ]


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledgements_tell_the_offset(cluster, use, acks):
    partition = cluster.partition()
    producer = use.producer(acks=acks)
    for _ in range(5):
        producer.send(partition, b"x")
    assert producer.flush() == [0, 1, 2, 3, 4]


def test_without_acknowledgement_records_still_arrive_in_order(cluster, use):
    partition = cluster.partition()
    producer = use.producer(acks=0)
    for number in range(50):
        producer.send(partition, b"%d" % number)
    producer.flush()
    wait_until(lambda: cluster.ends(partition) == (0, 50), what="the records")
    assert cluster.values(partition) == [b"%d" % number for number in range(50)]


def _values(count=100):
    return [b"%d" % number + b"." * 200 for number in range(count)]


def _write(cluster, use, compression):
    partition = cluster.partition()
    producer = use.producer(compression=compression, linger_ms=50)
    for value in _values():
        producer.send(partition, value)
    assert producer.flush() == list(range(100))
    return partition


def _read_by(client, cluster, partition):
    consumer = client.consumer(cluster.bootstrap_servers, ConsumerSettings())
    try:
        consumer.assign({partition: START})
        return [record.value for record in take(consumer, 100)]
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_every_client_reads_what_every_client_wrote(cluster, use, compression):
    partition = _write(cluster, use, compression)
    for client in (ConfluentClient(), AiokafkaClient(), KafkaPythonClient()):
        assert _read_by(client, cluster, partition) == _values(), client.name


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
@case(Ability.ALL_CODECS)
def test_every_client_with_all_codecs_reads_what_the_others_wrote(cluster, use, compression):
    partition = _write(cluster, use, compression)
    for client in (ConfluentClient(), AiokafkaClient()):
        assert _read_by(client, cluster, partition) == _values(), client.name


def test_batches_keep_the_order_of_each_partition(cluster, use):
    topic = cluster.topic(3)
    producer = use.producer(linger_ms=5, batch_bytes=4_000)
    for number in range(600):
        producer.send(Partition(topic, number % 3), b"%d" % number)
    producer.flush()
    for number in range(3):
        records = cluster.read(Partition(topic, number))
        assert offsets(records) == list(range(200))
        assert [int(record.value) for record in records] == list(range(number, 600, 3))


def test_a_key_always_goes_to_the_same_partition(cluster, use):
    topic = cluster.topic(4)
    producer = use.producer()
    for number in range(120):
        producer.send(Partition(topic, -1), b"x", key=b"key %d" % (number % 12))
    producer.flush()
    records = cluster.read(*(Partition(topic, number) for number in range(4)))
    places: dict[bytes | None, set[int]] = {}
    for found in records:
        places.setdefault(found.key, set()).add(found.partition.number)
    assert len(records) == 120 and len(places) == 12
    assert all(len(numbers) == 1 for numbers in places.values())
    assert len(set.union(*places.values())) > 1


def _value_for_batch_of(size):
    """A value that makes the batch of one record, as every client encodes it, exactly this large."""
    overhead = BATCH_HEADER_BYTES + len(record(b"x" * (size - 100))) - (size - 100)
    return b"x" * (size - overhead)


def test_a_batch_of_exactly_the_limit_is_taken_and_one_byte_more_refused(cluster, use):
    partition = cluster.partition(max_message_bytes="100000")
    producer = use.producer()
    producer.send(partition, _value_for_batch_of(100_000))
    assert producer.flush() == [0]
    producer.send(partition, _value_for_batch_of(100_000) + b"x")
    (refused,) = producer.flush()
    assert matches(refused, MESSAGE_TOO_LARGE)


def test_a_producer_goes_on_after_a_record_that_was_too_large(cluster, use):
    partition = cluster.partition(max_message_bytes="100000")
    producer = use.producer()
    producer.send(partition, os.urandom(200_000))
    (refused,) = producer.flush()
    assert matches(refused, MESSAGE_TOO_LARGE)
    producer.send(partition, os.urandom(50_000))
    assert producer.flush() == [0]
    assert [len(value) for value in cluster.values(partition)] == [50_000]


@pytest.mark.parametrize("size", [900_000, 4_000_000, 15_000_000])
def test_large_records_come_back_whole(cluster, use, size):
    partition = cluster.partition(max_message_bytes="30000000")
    value = os.urandom(size)
    producer = use.producer()
    producer.send(partition, value)
    assert producer.flush() == [0]
    consumer = use.consumer()
    consumer.assign({partition: START})
    (found,) = take(consumer, 1)
    assert found.value == value


def test_an_idempotent_producer_writes_each_record_once_and_in_order(cluster, use):
    topic = cluster.topic(2)
    producer = use.producer(idempotent=True)
    for number in range(500):
        producer.send(Partition(topic, number % 2), b"%d" % number)
    producer.flush()
    for number in range(2):
        values = [int(value) for value in cluster.values(Partition(topic, number))]
        assert values == list(range(number, 500, 2))


def _cut_connections(port):
    """Break every connection of this process to a port, from under the clients that use them."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as found:
                    if found.family == socket.AF_INET and found.getpeername()[1] == port:
                        found.shutdown(socket.SHUT_RDWR)


def test_broken_connections_neither_lose_nor_repeat_nor_reorder(cluster, use):
    partition = cluster.partition()
    producer = use.producer(idempotent=True)
    for number in range(300):
        producer.send(partition, b"%d" % number)
        if number % 100 == 50:
            _cut_connections(cluster.port)
    assert producer.flush() == list(range(300))
    assert [int(value) for value in cluster.values(partition)] == list(range(300))


@case(only="embedded")
def test_producing_creates_a_topic_where_the_setting_allows_it(cluster, use):
    partition = Partition(unique("topic"))
    producer = use.producer()
    producer.send(partition, b"x")
    assert producer.flush() == [0]
    assert cluster.values(partition) == [b"x"]


# The protocol itself


def test_a_repeated_batch_of_an_idempotent_producer_is_acknowledged_and_not_written(cluster, wire):
    partition, producer = cluster.partition(), wire.producer_id()
    first = batch(b"a", b"b", producer=producer, sequence=0)
    assert wire.produce(partition, first)["base_offset"] == 0
    assert wire.produce(partition, batch(b"c", producer=producer, sequence=2))["base_offset"] == 2
    again = wire.produce(partition, first)
    assert (again["error_code"], again["base_offset"]) == (0, 0)
    assert cluster.values(partition) == [b"a", b"b", b"c"]


def test_a_gap_in_the_sequence_is_refused(cluster, wire):
    partition, producer = cluster.partition(), wire.producer_id()
    assert wire.produce(partition, batch(b"a", producer=producer, sequence=0))["error_code"] == 0
    assert wire.produce(partition, batch(b"c", producer=producer, sequence=5))["error_code"] == 45
    assert wire.produce(partition, batch(b"b", producer=producer, sequence=1))["error_code"] == 0
    assert cluster.values(partition) == [b"a", b"b"]


def test_an_older_epoch_of_a_producer_is_fenced(cluster, wire):
    partition, (producer_id, epoch) = cluster.partition(), wire.producer_id()
    assert wire.produce(partition, batch(b"new", producer=(producer_id, epoch + 1), sequence=0))["error_code"] == 0
    old = wire.produce(partition, batch(b"old", producer=(producer_id, epoch), sequence=0))
    assert old["error_code"] == 47
    assert cluster.values(partition) == [b"new"]


def test_a_damaged_batch_is_refused(cluster, wire):
    partition = cluster.partition()
    damaged = bytearray(batch(b"value"))
    damaged[-1] ^= 1
    assert wire.produce(partition, bytes(damaged))["error_code"] == 2
    assert cluster.ends(partition) == (0, 0)


@pytest.mark.parametrize("acks", [2, -2])
def test_impossible_acknowledgements_are_refused(cluster, wire, acks):
    partition = cluster.partition()
    assert wire.produce(partition, batch(b"x"), acks=acks)["error_code"] == 21
    assert cluster.ends(partition) == (0, 0)


def test_an_unknown_partition_is_refused_and_the_others_of_the_request_are_written(cluster, wire):
    topic = cluster.topic(1)
    data = [{"index": number, "records": batch(b"x")} for number in (0, 7)]
    answer = wire.call(
        "produce",
        8,
        transactional_id=None,
        acks=-1,
        timeout=1_000,
        topic_data=[
            {"name": topic, "partition_data": data},
            {"name": unique("missing"), "partition_data": data[:1]},
        ],
    )
    codes = [partition["error_code"] for topic in answer["responses"] for partition in topic["partition_responses"]]
    assert codes == [0, 3, 3]
    assert cluster.ends(Partition(topic)) == (0, 1)


@case(differs="LogAppendTime is refused when the topic is created: rollouts carry the time at which they happened")
def test_the_broker_stamps_records_where_the_topic_wants_it(cluster, wire):
    if not cluster.capabilities.log_append_time:
        with pytest.raises(Exception, match=r"message\.timestamp\.type"):
            cluster.topic(message_timestamp_type="LogAppendTime")
        return
    partition = cluster.partition(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    assert wire.produce(partition, batch(b"x", timestamp_ms=1_000))["log_append_time"] is not None
    (found,) = cluster.read(partition)
    assert before_ms - 5_000 <= found.timestamp_ms <= before_ms + 60_000


def test_a_batch_whose_numbers_do_not_fit_is_refused(cluster, wire):
    partition = cluster.partition()
    header = BatchHeader(0, 0, 0, 2, 0, 0, 4, 1, 1, -1, -1, -1, 1)
    assert wire.produce(partition, build_batch([record(b"x")], header))["error_code"] == 87
    assert cluster.ends(partition) == (0, 0)


@case(differs="batches are stored as they came: what is inside one is not looked at when it is produced")
def test_the_records_inside_a_batch_are_looked_at(cluster, wire):
    partition = cluster.partition(cleanup_policy="compact")
    codes = [wire.produce(partition, batch(b"x", key=key))["error_code"] for key in (b"key", None)]
    assert codes == ([0, 87] if cluster.capabilities.reads_records else [0, 0])
