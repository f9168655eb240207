"""Cleaning"""

from __future__ import annotations

import time

import pytest

from tests.conformance.kafka.clients.port import START, Ability
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, poll_until, unique, wait_until

pytestmark = pytest.mark.slow

QUICK = {"cleanup_policy": "compact", "segment_ms": "500", "min_cleanable_dirty_ratio": "0.01"}


def _until(cluster, partition, condition, what):
    """Wait for the cleaner; each look writes a record, so that segments are closed."""

    def cleaned():
        cluster.write(partition, [b"tick"], key=b"tick")
        time.sleep(0.1)
        return condition()

    wait_until(cleaned, cluster.capabilities.cleaning_seconds, what)


def _kept(cluster, partition, *, committed_only=True):
    return [record for record in cluster.read(partition, committed_only=committed_only) if record.key != b"tick"]


def test_retention_by_time_moves_the_start(cluster, use):
    partition = cluster.partition(retention_ms="1500", segment_ms="500")
    cluster.write(partition, [b"old"] * 1_000)
    _until(cluster, partition, lambda: cluster.ends(partition)[0] >= 1_000, "retention")
    consumer = use.consumer(reset="earliest")
    consumer.assign({partition: 0})
    _, end = cluster.ends(partition)
    records = poll_until([consumer], lambda found: found and found[-1].offset == end - 1)
    assert records[0].offset >= 1_000 and {record.value for record in records} == {b"tick"}
    assert offsets(records) == list(range(records[0].offset, records[0].offset + len(records)))


def test_retention_by_size_keeps_the_newest(cluster, use):
    partition = cluster.partition(retention_bytes="3000000", segment_bytes="1048576")
    for _ in range(8):
        cluster.write(partition, [b"x" * 1_000] * 1_000)
    wait_until(lambda: cluster.ends(partition)[0] > 0, cluster.capabilities.cleaning_seconds, "retention")
    start, end = cluster.ends(partition)
    assert end == 8_000
    assert (end - start) * 1_000 >= 3_000_000 - 1_048_576
    consumer = use.consumer()
    consumer.assign({partition: START})
    records = poll_until([consumer], lambda found: found and found[-1].offset == 7_999)
    assert records[0].offset >= start and {record.value for record in records} == {b"x" * 1_000}


def _compacts(cluster, use, compression):
    partition = cluster.partition(**QUICK, delete_retention_ms="100000")
    producer = use.producer(compression=compression, linger_ms=20)
    for number in range(300):
        producer.send(partition, b"value %d" % number, key=b"key %d" % (number % 7))
        if number % 50 == 49:
            producer.flush()
    producer.send(partition, None, key=b"key 3")
    producer.flush()
    last = {b"key %d" % (number % 7): (number, b"value %d" % number) for number in range(300)}
    last[b"key 3"] = (300, None)
    _until(cluster, partition, lambda: len(_kept(cluster, partition)) == 7, "compaction")
    consumer = use.consumer()
    consumer.assign({partition: START})
    end = cluster.ends(partition)[1]
    found = poll_until([consumer], lambda found: found and found[-1].offset == end - 1)
    records = [record for record in found if record.key != b"tick"]
    assert {record.key: (record.offset, record.value) for record in records} == last
    assert len(records) == 7 and offsets(records) == sorted(offsets(records))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_compaction_keeps_the_last_record_of_each_key_at_its_offset(cluster, use, compression):
    _compacts(cluster, use, compression)


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
@case(Ability.ALL_CODECS)
def test_compaction_reads_and_writes_every_codec(cluster, use, compression):
    _compacts(cluster, use, compression)


def test_tombstones_go_after_their_time(cluster):
    partition = cluster.partition(**QUICK, delete_retention_ms="500")
    cluster.write(partition, [b"value", None], key=b"gone")
    cluster.write(partition, [b"value"], key=b"kept")
    _until(cluster, partition, lambda: [record.key for record in _kept(cluster, partition)] == [b"kept"], "the end")


def test_compaction_drops_what_was_aborted_and_keeps_what_was_committed(cluster, use):
    partition = cluster.partition(**QUICK)
    producer = use.producer(transactional_id=unique("transaction"))
    for value, commit in ((b"one", True), (b"two", True), (b"aborted", False)):
        producer.begin()
        producer.send(partition, value, key=b"key")
        producer.flush()
        (producer.commit if commit else producer.abort)()

    def compacted():
        return [record.value for record in _kept(cluster, partition, committed_only=False)] == [b"two"]

    _until(cluster, partition, compacted, "compaction")
    assert [record.value for record in _kept(cluster, partition)] == [b"two"]


def test_a_policy_that_is_changed_is_obeyed(cluster):
    partition = cluster.partition(segment_ms="500", min_cleanable_dirty_ratio="0.01")
    cluster.write(partition, [b"one", b"two", b"three"], key=b"key")
    cluster.admin.set_config(partition.topic, {"cleanup.policy": "compact"})
    _until(cluster, partition, lambda: [record.value for record in _kept(cluster, partition)] == [b"three"], "the end")
