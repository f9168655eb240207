"""Idempotence and transactions, two clients."""

from __future__ import annotations

import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition


def _values(messages):
    return sorted(message.value() for message in messages)


def _transactional(cluster, name, **settings):
    producer = Producer(cluster.config(transactional_id=name, linger_ms=0, **settings))
    producer.init_transactions(20)
    return producer


def test_idempotent_producers_write_each_record_once(cluster):
    topic = cluster.create_topic(2)
    values = [str(number).encode() for number in range(2_000)]
    cluster.produce(topic, values, enable_idempotence=True)
    assert _values(cluster.read_all(topic)) == sorted(values)


async def test_aiokafka_idempotent_producers_write_each_record_once(cluster):
    topic = cluster.create_topic(2)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True)
    await producer.start()
    try:
        for number in range(500):
            await producer.send(topic, b"%d" % number)
        await producer.flush()
    finally:
        await producer.stop()
    assert _values(cluster.read_all(topic)) == sorted(b"%d" % number for number in range(500))


def test_committed_is_seen_aborted_and_open_is_not(cluster, unique):
    topic = cluster.create_topic(2)
    producer = _transactional(cluster, unique("transaction"))
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, b"aborted %d" % number)
    producer.flush(10)
    producer.abort_transaction(10)
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, b"committed %d" % number)
    producer.commit_transaction(10)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, b"open %d" % number)
    assert producer.flush(10) == 0
    committed = sorted(b"committed %d" % number for number in range(20))
    assert _values(cluster.read_all(topic)) == committed
    assert len(cluster.read_all(topic, committed_only=False)) == 28
    producer.commit_transaction(10)
    assert _values(cluster.read_all(topic)) == sorted([*committed, b"open 0", b"open 1", b"open 2"])


def test_records_behind_an_open_transaction_wait_for_it(cluster, unique):
    topic = cluster.create_topic()
    producer = _transactional(cluster, unique("transaction"))
    producer.begin_transaction()
    producer.produce(topic, b"first")
    assert producer.flush(10) == 0
    cluster.produce(topic, [b"second"])
    assert cluster.read_all(topic) == []
    producer.commit_transaction(10)
    assert [message.value() for message in cluster.read_all(topic)] == [b"first", b"second"]


@pytest.mark.parametrize("commit", [True, False])
def test_consumed_offsets_are_committed_with_the_transaction(cluster, unique, commit):
    source, target = cluster.create_topic(2), cluster.create_topic(2)
    cluster.produce(source, [b"x"] * 20)
    consumer = Consumer(cluster.group_config(isolation_level="read_committed"))
    producer = _transactional(cluster, unique("transaction"))
    try:
        consumer.subscribe([source])
        taken: list = []
        deadline = time.monotonic() + 20
        while len(taken) < 20:
            assert time.monotonic() < deadline
            taken += [message for message in consumer.consume(20, 0.1) if message.error() is None]
        producer.begin_transaction()
        for message in taken:
            producer.produce(target, message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 10
        )
        if commit:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
        committed = consumer.committed([TopicPartition(source, 0), TopicPartition(source, 1)], 10)
    finally:
        consumer.close()
    assert sum(max(0, partition.offset) for partition in committed) == (20 if commit else 0)
    assert len(cluster.read_all(target)) == (20 if commit else 0)


def test_a_second_producer_fences_the_first(cluster, unique):
    topic, name = cluster.create_topic(), unique("transaction")
    zombie = _transactional(cluster, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    assert zombie.flush(10) == 0
    current = _transactional(cluster, name)
    zombie.produce(topic, b"zombie again")
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(10)
    assert caught.value.args[0].code() == KafkaError._FENCED
    current.begin_transaction()
    current.produce(topic, b"current")
    current.commit_transaction(10)
    assert [message.value() for message in cluster.read_all(topic)] == [b"current"]


def test_an_abandoned_transaction_is_aborted_after_its_timeout(cluster, unique, wait_until):
    topic = cluster.create_topic()
    producer = _transactional(cluster, unique("transaction"), transaction_timeout_ms=1_000)
    producer.begin_transaction()
    producer.produce(topic, b"abandoned")
    assert producer.flush(10) == 0
    cluster.produce(topic, [b"after"])
    wait_until(lambda: cluster.read_all(topic), 30, "the abort")
    assert [message.value() for message in cluster.read_all(topic)] == [b"after"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(10)


def test_a_transaction_timeout_beyond_the_limit_is_refused(cluster, unique):
    producer = Producer(cluster.config(transactional_id=unique("transaction"), transaction_timeout_ms=2_000_000))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(10)
    assert caught.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


async def test_aiokafka_transactions(cluster, unique):
    source, target = cluster.create_topic(), cluster.create_topic()
    cluster.produce(source, [b"%d" % number for number in range(10)])
    group = unique("group")
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=unique("transaction"))
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await producer.start()
    await consumer.start()
    try:
        taken = [await consumer.getone() for _ in range(10)]
        async with producer.transaction():
            for message in taken:
                await producer.send(target, message.value)
            await producer.send_offsets_to_transaction({AioTopicPartition(source, 0): 10}, group)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(target, b"aborted")
                raise ZeroDivisionError
        committed = await consumer.committed(AioTopicPartition(source, 0))
    finally:
        await consumer.stop()
        await producer.stop()
    assert committed == 10
    assert [message.value() for message in cluster.read_all(target)] == [b"%d" % number for number in range(10)]
