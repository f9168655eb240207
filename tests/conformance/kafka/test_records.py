"""Records through three clients: what goes in comes out, whoever wrote and whoever reads."""

from __future__ import annotations

import os
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import KafkaConsumer, KafkaProducer

CODECS = ("gzip", "snappy", "lz4", "zstd")


def _confluent_write(cluster, topic, values, codec):
    cluster.produce(topic, values, compression_type=codec, linger_ms=20)


async def _aiokafka_write(cluster, topic, values, codec):
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    await producer.start()
    try:
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
    finally:
        await producer.stop()


def _kafka_python_write(cluster, topic, values, codec):
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    try:
        for value in values:
            producer.send(topic, value)
        producer.flush(20)
    finally:
        producer.close()


async def _aiokafka_read(cluster, topic, count):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    messages: list = []
    try:
        deadline = time.monotonic() + 20
        while len(messages) < count and time.monotonic() < deadline:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                messages += batch
    finally:
        await consumer.stop()
    return messages


def _kafka_python_read(cluster, topic, count):
    consumer = KafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", group_id=None
    )
    messages: list = []
    try:
        deadline = time.monotonic() + 20
        while len(messages) < count and time.monotonic() < deadline:
            for batch in consumer.poll(timeout_ms=200).values():
                messages += batch
    finally:
        consumer.close()
    return messages


def _writers_and_codecs():
    """kafka-python brings gzip only; the other two clients bring all codecs."""
    for writer in ("confluent", "aiokafka", "kafka-python"):
        for codec in ("none", "gzip") if writer == "kafka-python" else ("none", *CODECS):
            yield writer, codec


@pytest.mark.parametrize(("writer", "codec"), _writers_and_codecs())
async def test_every_client_reads_what_every_client_wrote(cluster, writer, codec):
    topic = cluster.create_topic()
    values = [str(number).encode().ljust(200, b".") for number in range(200)]
    if writer == "confluent":
        _confluent_write(cluster, topic, values, codec)
    elif writer == "aiokafka":
        await _aiokafka_write(cluster, topic, values, codec)
    else:
        _kafka_python_write(cluster, topic, values, codec)
    assert [message.value() for message in cluster.read_all(topic)] == values
    assert [message.value for message in await _aiokafka_read(cluster, topic, 200)] == values
    if codec in ("none", "gzip"):
        assert [message.value for message in _kafka_python_read(cluster, topic, 200)] == values


def test_headers_timestamps_keys_and_tombstones_are_kept(cluster):
    topic = cluster.create_topic(3)
    start_ms = int(time.time() * 1000) - 60_000
    producer = Producer(cluster.config())
    headers = [("h", b"\x00\xff"), ("n", None), ("h", b"2")]
    for number in range(300):
        producer.produce(topic, f"v{number}", key=f"k{number % 5}", headers=headers, timestamp=start_ms + number)
    producer.produce(topic, None, key="tombstone")
    producer.produce(topic, b"no key")
    assert producer.flush(10) == 0
    messages = cluster.read_all(topic)
    assert len(messages) == 302
    (seventh,) = [message for message in messages if message.value() == b"v7"]
    assert (seventh.headers(), seventh.timestamp(), seventh.key()) == (headers, (1, start_ms + 7), b"k2")
    assert [message.value() for message in messages if message.key() == b"tombstone"] == [None]
    assert [message.value() for message in messages if message.key() is None] == [b"no key"]
    offsets: dict[int, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.partition(), []).append(message.offset())
    assert all(found == list(range(len(found))) for found in offsets.values())
    by_key = {message.key(): message.partition() for message in messages}
    assert all(by_key[message.key()] == message.partition() for message in messages)


def test_offsets_by_time(cluster):
    topic = cluster.create_topic()
    start_ms = int(time.time() * 1000) - 3_600_000
    producer = Producer(cluster.config())
    for number in range(100):
        producer.produce(topic, b"x", partition=0, timestamp=start_ms + number * 1000)
        if number % 10 == 9:
            producer.flush(5)
    consumer = Consumer(cluster.config(group_id="none"))
    try:

        def offset_at(milliseconds):
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, start_ms + milliseconds)], 10)
            return found.offset

        assert cluster.watermarks(topic) == (0, 100)
        assert [offset_at(0), offset_at(54_001), offset_at(55_000), offset_at(99_000)] == [0, 55, 55, 99]
        assert offset_at(10**8) == -1
    finally:
        consumer.close()
    newest = cluster.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()})
    (answer,) = [future.result(10) for future in newest.values()]
    assert (answer.offset, answer.timestamp) == (99, start_ms + 99_000)


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_by_time_inside_compressed_batches(cluster, codec):
    topic = cluster.create_topic()
    start_ms = int(time.time() * 1000) - 3_600_000
    producer = Producer(cluster.config(compression_type=codec, linger_ms=200))
    for number in range(100):
        producer.produce(topic, b"x" * 100, partition=0, timestamp=start_ms + number)
    assert producer.flush(10) == 0
    consumer = Consumer(cluster.config(group_id="none"))
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, start_ms + 42)], 10)
    finally:
        consumer.close()
    assert found.offset == 42


def test_delete_records_moves_the_start(cluster):
    topic = cluster.create_topic()
    cluster.produce(topic, [b"x"] * 100)
    deletion = cluster.admin.delete_records([TopicPartition(topic, 0, 40)])
    (deleted,) = [future.result(10) for future in deletion.values()]
    assert deleted.low_watermark == 40
    assert cluster.watermarks(topic) == (40, 100)
    assert [message.offset() for message in cluster.read_all(topic)] == list(range(40, 100))


@pytest.mark.parametrize("size", [900_000, 4_000_000, 15_000_000])
def test_large_records(cluster, size):
    topic = cluster.create_topic(max_message_bytes="30000000")
    value = os.urandom(size)
    cluster.produce(topic, [value], message_max_bytes=30_000_000)
    (message,) = cluster.read_all(topic)
    assert message.value() == value


def test_a_record_over_the_topic_limit_is_refused(cluster):
    topic = cluster.create_topic(max_message_bytes="100000")
    outcomes: list[KafkaError | None] = []
    producer = Producer(cluster.config(message_max_bytes=2_000_000))
    for size in (200_000, 50_000):
        producer.produce(topic, os.urandom(size), on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(10) == 0
    refused, accepted = outcomes
    assert refused is not None and refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert accepted is None
    assert [len(message.value()) for message in cluster.read_all(topic)] == [50_000]


def test_small_fetches_still_get_everything(cluster):
    topic = cluster.create_topic()
    values = [os.urandom(20_000) for _ in range(50)]
    cluster.produce(topic, values, linger_ms=20)
    small = cluster.read_all(topic, fetch_message_max_bytes=1_000, fetch_max_bytes=1_000_000)
    assert [message.value() for message in small] == values


def test_seek_pause_and_resume(cluster, wait_until):
    topic = cluster.create_topic()
    cluster.produce(topic, [b"x"] * 100)
    consumer = Consumer(cluster.config(group_id="none", enable_auto_commit=False))
    try:

        def read(count):
            offsets: list[int] = []

            def poll():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    offsets.append(message.offset())
                return len(offsets) >= count

            wait_until(poll, what=f"{count} records")
            return offsets

        consumer.assign([TopicPartition(topic, 0, 50)])
        assert read(50) == list(range(50, 100))
        consumer.seek(TopicPartition(topic, 0, 10))
        assert read(5) == [10, 11, 12, 13, 14]
        consumer.pause([TopicPartition(topic, 0)])
        assert consumer.poll(0.5) is None
        consumer.resume([TopicPartition(topic, 0)])
        assert read(5) == [15, 16, 17, 18, 19]
    finally:
        consumer.close()


def test_reading_beyond_the_end_is_out_of_range(cluster, wait_until):
    topic = cluster.create_topic()
    cluster.produce(topic, [b"x"] * 3)
    consumer = Consumer(cluster.config(group_id="none", auto_offset_reset="error"))
    errors: list[KafkaError] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 1_000)])

        def poll():
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                errors.append(message.error())
            return errors

        wait_until(poll, what="the error")
    finally:
        consumer.close()
    assert errors[0].code() == KafkaError._AUTO_OFFSET_RESET


async def test_latency_of_single_records(cluster):
    """A record is read as soon as it is there: long polls answer on arrival, not at their timeout."""
    topic = cluster.create_topic()
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    try:
        await producer.send_and_wait(topic, b"warm-up")
        await consumer.getone()
        seconds: list[float] = []
        for _ in range(100):
            began = time.perf_counter()
            await producer.send_and_wait(topic, b"x")
            await consumer.getone()
            seconds.append(time.perf_counter() - began)
    finally:
        await consumer.stop()
        await producer.stop()
    median = sorted(seconds)[50]
    assert median < 0.05, f"median {median * 1000:.1f} ms"
