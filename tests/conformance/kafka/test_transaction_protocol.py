"""Transactions: the protocol itself"""

from __future__ import annotations

import pytest

from tests.conformance.kafka.clients.port import Partition
from tests.conformance.kafka.clients.wire import batch
from tests.conformance.kafka.engines import unique, wait_until

INVALID_EPOCH, INVALID_STATE, INVALID_ID, FENCED, UNSTABLE = 47, 48, 49, 90, 88
CONCURRENT, NOT_LEADER = 51, 6


class _Transaction:
    """One transactional id, by single requests."""

    def __init__(self, wire, *, timeout_ms=60_000):
        self.wire, self.name = wire, unique("transaction")
        self.producer = wire.producer_id(self.name, timeout_ms=timeout_ms)
        self.sequence = 0

    def _call(self, name, version, **body):
        """Kafka finishes a transaction after it has answered; requests meanwhile are to be sent again."""
        answers = []

        def answered():
            answers.append(self.wire.call(name, version, **body))
            return CONCURRENT not in _codes(answers[-1])

        wait_until(answered, what="the end of the transaction before")
        return answers[-1]

    def add(self, *partitions, producer=None):
        producer_id, epoch = producer or self.producer
        answer = self._call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[{"name": topic, "partitions": [number]} for topic, number in partitions],
        )
        return [
            partition["partition_error_code"]
            for topic in answer["results_by_topic_v3_and_below"]
            for partition in topic["results_by_partition"]
        ]

    def produce(self, partition, value, *, producer=None):
        records = batch(value, producer=producer or self.producer, sequence=self.sequence, transactional=True)
        codes = [NOT_LEADER]

        def answered():
            codes.append(self.wire.produce(partition, records, name=self.name)["error_code"])
            return codes[-1] != NOT_LEADER

        wait_until(answered, what="a leader of the new topic")
        self.sequence += codes[-1] == 0
        return codes[-1]

    def end(self, commit, *, producer=None):
        producer_id, epoch = producer or self.producer
        body = {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}
        return self._call("end_txn", 3, committed=commit, **body)["error_code"]


def _codes(answer):
    yield answer.get("error_code")
    for topic in answer.get("results_by_topic_v3_and_below", ()):
        for partition in topic["results_by_partition"]:
            yield partition["partition_error_code"]


@pytest.fixture
def transaction(wire):
    return _Transaction(wire)


def test_each_start_of_a_producer_raises_its_epoch(cluster, wire):
    name = unique("transaction")
    first, second = wire.producer_id(name), wire.producer_id(name)
    assert first[0] == second[0] and second[1] == first[1] + 1
    assert wire.producer_id(unique("transaction"))[0] != first[0]


def test_the_stable_offset_stops_at_an_open_transaction(cluster, wire, transaction):
    partition = cluster.partition()
    cluster.write(partition, [b"before"])
    assert transaction.add(partition) == [0]
    assert transaction.produce(partition, b"open") == 0
    cluster.write(partition, [b"after"])
    answer = wire.fetch_one(partition)
    assert (answer["high_watermark"], answer["last_stable_offset"]) == (3, 1)
    assert transaction.end(True) == 0
    wait_until(lambda: wire.fetch_one(partition)["last_stable_offset"] == 4, what="the marker")


def test_aborted_transactions_are_named_to_readers_of_committed_records(cluster, wire, transaction):
    partition = cluster.partition()
    cluster.write(partition, [b"before"])
    transaction.add(partition)
    transaction.produce(partition, b"aborted")
    assert transaction.end(False) == 0
    wait_until(lambda: wire.fetch_one(partition)["last_stable_offset"] == 3, what="the marker")
    aborted = wire.fetch_one(partition, isolation_level=1)["aborted_transactions"]
    assert [(found["producer_id"], found["first_offset"]) for found in aborted] == [(transaction.producer[0], 1)]
    assert not wire.fetch_one(partition, isolation_level=0)["aborted_transactions"]


def test_a_fetch_for_committed_records_ends_before_the_open_ones(cluster, wire, transaction):
    partition = cluster.partition()
    cluster.write(partition, [b"before"])
    transaction.add(partition)
    transaction.produce(partition, b"open")
    everything = wire.fetch_one(partition, isolation_level=0)["records"]
    committed = wire.fetch_one(partition, isolation_level=1)["records"]
    assert 0 < len(committed) < len(everything)


def test_an_unknown_partition_fails_the_addition_as_a_whole(cluster, transaction):
    partition = cluster.partition()
    assert sorted(transaction.add(partition, Partition(unique("missing")))) == [3, 55]


def test_a_producer_of_an_older_epoch_can_do_nothing(cluster, wire, transaction):
    partition = cluster.partition()
    old = transaction.producer
    transaction.producer = wire.producer_id(transaction.name)
    assert transaction.add(partition, producer=old)[0] in (INVALID_EPOCH, FENCED)
    assert transaction.end(True, producer=old) in (INVALID_EPOCH, FENCED)
    assert transaction.add(partition) == [0]
    assert transaction.produce(partition, b"x") == 0
    assert transaction.produce(partition, b"x", producer=old) in (INVALID_EPOCH, FENCED)
    assert transaction.end(True) == 0


def test_a_producer_id_that_is_not_the_names_is_refused(cluster, transaction):
    producer_id, epoch = transaction.producer
    assert transaction.add(cluster.partition(), producer=(producer_id + 100_000, epoch)) == [INVALID_ID]


def test_a_transactional_batch_needs_its_partition_in_the_transaction(cluster, transaction):
    partition = cluster.partition()
    assert transaction.produce(partition, b"x") == INVALID_STATE
    assert cluster.ends(partition) == (0, 0)


def test_an_end_may_be_repeated_and_not_reversed(cluster, transaction):
    transaction.add(cluster.partition())
    assert transaction.end(True) == 0
    assert transaction.end(True) == 0
    assert transaction.end(False) == INVALID_STATE


def test_nothing_ends_before_it_has_begun(cluster, transaction):
    assert transaction.end(True) == INVALID_STATE
    assert transaction.end(False) == INVALID_STATE


def test_offsets_of_an_open_transaction_make_the_committed_ones_unstable(cluster, wire, transaction):
    group, partition = unique("group"), cluster.partition()
    producer_id, epoch = transaction.producer
    body = {"transactional_id": transaction.name, "producer_id": producer_id, "producer_epoch": epoch}
    assert transaction._call("add_offsets_to_txn", 3, group_id=group, **body)["error_code"] == 0
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = wire.call(
        "txn_offset_commit",
        3,
        group_id=group,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": partition.topic, "partitions": [row]}],
        **body,
    )
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0

    def fetched(stable):
        topics = [{"name": partition.topic, "partition_indexes": [0]}]
        answer = wire.call("offset_fetch", 7, group_id=group, topics=topics, require_stable=stable)
        found = answer["topics"][0]["partitions"][0]
        return found["error_code"], found["committed_offset"]

    assert fetched(stable=True) == (UNSTABLE, -1)
    assert fetched(stable=False) == (0, -1)
    assert transaction.end(True) == 0
    wait_until(lambda: fetched(stable=True) == (0, 7), what="the commit")
