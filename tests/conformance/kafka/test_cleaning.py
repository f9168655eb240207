"""Retention and compaction: what goes, what stays, and that offsets do not change."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaError, Producer, TopicPartition

pytestmark = pytest.mark.slow


def test_retention_by_time_moves_the_start(cluster, wait_until):
    topic = cluster.create_topic(retention_ms="1500", segment_ms="500")
    cluster.produce(topic, [b"old"] * 1_000)

    def start_moved():
        cluster.produce(topic, [b"new"])
        return cluster.watermarks(topic)[0] >= 1_000

    wait_until(start_moved, cluster.capabilities.cleaning_seconds, "retention")
    low, high = cluster.watermarks(topic)
    messages = cluster.read_all(topic)
    assert {message.value() for message in messages} <= {b"new"}
    assert [message.offset() for message in messages] == list(range(low, high))


def test_retention_by_size_keeps_the_newest(cluster, wait_until):
    topic = cluster.create_topic(retention_bytes="3000000", segment_bytes="1048576")
    for _ in range(8):
        cluster.produce(topic, [b"x" * 1000] * 1_000)
    wait_until(lambda: cluster.watermarks(topic)[0] > 0, cluster.capabilities.cleaning_seconds, "retention")
    low, high = cluster.watermarks(topic)
    assert high == 8_000
    assert (high - low) * 1000 >= 3_000_000 - 1_048_576
    assert [message.offset() for message in cluster.read_all(topic)] == list(range(low, high))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compaction_keeps_the_last_record_of_each_key(cluster, wait_until, codec):
    topic = cluster.create_topic(
        cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.01", delete_retention_ms="100000"
    )
    producer = Producer(cluster.config(compression_type=codec, linger_ms=20))
    for number in range(1_000):
        producer.produce(topic, b"value %d" % number, key=b"key %d" % (number % 7), headers=[("n", b"%d" % number)])
        if number % 50 == 49:
            producer.flush(10)
    producer.produce(topic, None, key=b"key 3")
    assert producer.flush(10) == 0
    last = {b"key %d" % (number % 7): (b"value %d" % number, number) for number in range(1_000)}
    last[b"key 3"] = (None, 1_000)

    def compacted():
        cluster.produce(topic, [b"x"], keys=1)
        return len(cluster.read_all(topic)) < 500

    wait_until(compacted, cluster.capabilities.cleaning_seconds, "compaction")
    messages = [message for message in cluster.read_all(topic) if message.key() != b"0"]
    kept = {message.key(): (message.value(), message.offset()) for message in messages}
    assert kept == last
    assert len(messages) == 7
    assert all(
        message.headers() == [("n", b"%d" % message.offset())] for message in messages if message.value() is not None
    )
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        first = await consumer.getone()
    finally:
        await consumer.stop()
    assert first.offset == messages[0].offset()


def test_compaction_drops_what_was_aborted_and_keeps_what_was_committed(cluster, unique, wait_until):
    topic = cluster.create_topic(cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.01")
    producer = Producer(cluster.config(transactional_id=unique("transaction"), linger_ms=0))
    producer.init_transactions(20)
    for value, commit in ((b"one", True), (b"two", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, value, key=b"key")
        producer.flush(10)
        (producer.commit_transaction if commit else producer.abort_transaction)(10)

    def compacted():
        cluster.produce(topic, [b"x"], keys=1)
        values = [message.value() for message in cluster.read_all(topic, committed_only=False)]
        return b"one" not in values and b"aborted" not in values

    wait_until(compacted, cluster.capabilities.cleaning_seconds, "compaction")
    assert [message.value() for message in cluster.read_all(topic) if message.key() == b"key"] == [b"two"]


def test_records_cannot_be_deleted_from_a_compacted_topic(cluster):
    topic = cluster.create_topic(cleanup_policy="compact")
    cluster.produce(topic, [b"x"] * 5)
    (future,) = cluster.admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    with pytest.raises(Exception) as caught:
        future.result(10)
    assert caught.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert cluster.watermarks(topic) == (0, 5)
