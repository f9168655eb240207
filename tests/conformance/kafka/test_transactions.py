"""Transactions"""

from __future__ import annotations

import pytest

from tests.conformance.kafka.clients.port import Partition, Refused
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, poll_until, refusal, take, unique, wait_until

LOST_TO_ANOTHER = (47, 90, -144)
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, and librdkafka's own code for both."""


def _transaction(producer, partition, *values, commit=True):
    producer.begin()
    for value in values:
        producer.send(partition, value, key=b"key")
    producer.flush()
    (producer.commit if commit else producer.abort)()


def _values(cluster, partition):
    cluster.settle(partition)
    return cluster.values(partition)


def test_committed_records_are_seen_and_aborted_ones_are_not(cluster, use):
    partition = cluster.partition()
    producer = use.producer(transactional_id=unique("transaction"))
    _transaction(producer, partition, b"one", b"two")
    _transaction(producer, partition, b"aborted", commit=False)
    _transaction(producer, partition, b"three")
    consumer = use.consumer(committed_only=True)
    consumer.assign({partition: 0})
    assert [record.value for record in take(consumer, 3)] == [b"one", b"two", b"three"]
    assert cluster.values(partition, committed_only=False) == [b"one", b"two", b"aborted", b"three"]


def test_a_reader_of_everything_sees_open_and_aborted_records(cluster, use):
    partition = cluster.partition()
    producer = use.producer(transactional_id=unique("transaction"))
    _transaction(producer, partition, b"aborted", commit=False)
    producer.begin()
    producer.send(partition, b"open")
    producer.flush()
    consumer = use.consumer(committed_only=False)
    consumer.assign({partition: 0})
    assert [record.value for record in take(consumer, 2)] == [b"aborted", b"open"]
    producer.abort()


def test_records_behind_an_open_transaction_wait_for_it(cluster, use):
    partition = cluster.partition()
    producer = use.producer(transactional_id=unique("transaction"))
    producer.begin()
    producer.send(partition, b"first")
    producer.flush()
    cluster.write(partition, [b"second"])
    consumer = use.consumer(committed_only=True)
    consumer.assign({partition: 0})
    assert consumer.poll(0.4) == []
    producer.commit()
    assert [record.value for record in take(consumer, 2)] == [b"first", b"second"]


def test_interleaved_transactions_are_read_in_the_order_of_their_offsets(cluster, use):
    partition = cluster.partition()
    producers = [use.producer(transactional_id=unique("transaction")) for _ in range(3)]
    for producer in producers:
        producer.begin()
    for turn in range(4):
        for number, producer in enumerate(producers):
            producer.send(partition, b"%d of %d" % (turn, number))
            producer.flush()
    producers[2].commit()
    producers[1].abort()
    producers[0].commit()
    consumer = use.consumer(committed_only=True)
    consumer.assign({partition: 0})
    records = take(consumer, 8)
    assert [record.value for record in records] == [b"%d of %d" % (turn, n) for turn in range(4) for n in (0, 2)]
    assert offsets(records) == sorted(offsets(records))


def test_a_transaction_covers_partitions_of_several_topics(cluster, use):
    partitions = [Partition(cluster.topic(2), 1), cluster.partition()]
    producer = use.producer(transactional_id=unique("transaction"))
    for commit in (False, True):
        producer.begin()
        for partition in partitions:
            producer.send(partition, b"committed" if commit else b"aborted")
        producer.flush()
        assert all(cluster.values(partition) == [] for partition in partitions)
        (producer.commit if commit else producer.abort)()
    assert [_values(cluster, partition) for partition in partitions] == [[b"committed"], [b"committed"]]


def test_a_transaction_without_records_changes_nothing(cluster, use):
    producer = use.producer(transactional_id=unique("transaction"))
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    partition = cluster.partition()
    _transaction(producer, partition, b"x")
    assert _values(cluster, partition) == [b"x"]


def test_markers_take_an_offset_and_are_never_read(cluster, use):
    partition = cluster.partition()
    producer = use.producer(transactional_id=unique("transaction"))
    _transaction(producer, partition, b"a")
    _transaction(producer, partition, b"b")
    consumer = use.consumer(committed_only=True)
    consumer.assign({partition: 0})
    assert offsets(take(consumer, 2)) == [0, 2]
    cluster.settle(partition)
    assert consumer.ends(partition) == (0, 4)
    poll_until([consumer], lambda more: not more and consumer.position(partition) == 4, "the end")


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_committed_with_the_transaction(cluster, use, commit):
    source, target, group = cluster.topic(), cluster.partition(), unique("group")
    cluster.write(Partition(source), [b"x"] * 5)
    consumer = use.consumer(group=group, committed_only=True)
    consumer.subscribe(source)
    records = take(consumer, 5)
    producer = use.producer(transactional_id=unique("transaction"))
    producer.begin()
    for record in records:
        producer.send(target, record.value)
    producer.flush()
    producer.send_offsets({Partition(source): 5}, consumer)
    assert cluster.admin.group_offsets(group).get(Partition(source), (-1001, ""))[0] < 0
    (producer.commit if commit else producer.abort)()
    expected = {Partition(source): (5, "")} if commit else {}
    wait_until(lambda: cluster.admin.group_offsets(group) == expected, what="the offsets")
    assert _values(cluster, target) == ([b"x"] * 5 if commit else [])


def test_a_second_producer_of_a_name_fences_the_first(cluster, use):
    partition, name = cluster.partition(), unique("transaction")
    zombie = use.producer(transactional_id=name)
    zombie.begin()
    zombie.send(partition, b"zombie")
    zombie.flush()
    current = use.producer(transactional_id=name)
    _transaction(current, partition, b"current")
    assert refusal(zombie.commit) in LOST_TO_ANOTHER
    assert _values(cluster, partition) == [b"current"]


def test_an_abandoned_transaction_is_aborted_after_its_timeout(cluster, use):
    partition = cluster.partition()
    producer = use.producer(transactional_id=unique("transaction"), transaction_timeout_ms=1_000)
    producer.begin()
    producer.send(partition, b"abandoned")
    producer.flush()
    cluster.write(partition, [b"after"])
    wait_until(lambda: cluster.values(partition), 30, "the abort")
    assert cluster.values(partition) == [b"after"]
    with pytest.raises(Refused):
        producer.commit()


def test_a_name_survives_its_producer(cluster, use):
    partition, name = cluster.partition(), unique("transaction")
    for number in range(3):
        producer = use.producer(transactional_id=name)
        _transaction(producer, partition, b"%d" % number)
        use.close(producer)
    assert _values(cluster, partition) == [b"0", b"1", b"2"]


@case(without={"kafka-python": "its error has no code"})
def test_a_timeout_beyond_the_limit_is_refused(cluster, use):
    refused = refusal(use.producer, transactional_id=unique("transaction"), transaction_timeout_ms=2_000_000)
    assert refused == 50
