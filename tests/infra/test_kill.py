"""kill -9 of the broker: what was acknowledged is there once, offsets and decisions hold, clients go on."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.infra.embedded.journal import Journal
from agl_stream.infra.embedded.log.index import SparseIndex

pytestmark = pytest.mark.faults


def create_topic(broker, topic, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(10)


def read_all(broker, topic, partitions=1, isolation="read_committed"):
    """Values of each partition in order, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is reported by an empty answer
            "isolation.level": isolation,
        }
    )
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        ended: set[int] = set()
        deadline = time.monotonic() + 30
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            for message in consumer.consume(1_000, 0.1):
                if message.error() is None:
                    values[message.partition()].append(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        return values
    finally:
        consumer.close()


def test_nothing_acknowledged_is_lost_or_doubled_by_kills_under_load(broker_process):
    """An idempotent producer keeps sending while the broker is killed three times; small segments make it roll."""
    create_topic(broker_process, "load", 4, **{"segment.bytes": "200000"})
    acknowledged: list[set[int]] = [set() for _ in range(4)]
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": broker_process.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    stop = threading.Event()
    sent = [0] * 4

    def delivered(error, message):
        if error is not None:
            failed.append(error)
        else:
            acknowledged[message.partition()].add(int(message.value().split()[0]))

    def send():
        while not stop.is_set():
            if len(producer) > 4_000:
                producer.poll(0.01)
                continue
            for partition in range(4):
                value = f"{sent[partition]} ".encode() + b"x" * 200
                producer.produce("load", value, partition=partition, on_delivery=delivered)
                sent[partition] += 1
            producer.poll(0)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(3):
            before = sum(map(len, acknowledged))
            deadline = time.monotonic() + 20
            while sum(map(len, acknowledged)) < before + 2_000:
                assert time.monotonic() < deadline, "the producer makes no progress"
                time.sleep(0.01)
            broker_process.kill()
            broker_process.start()
    finally:
        stop.set()
        sender.join()
    assert producer.flush(30) == 0
    assert not failed, failed[:3]
    stored = read_all(broker_process, "load", 4)
    for partition in range(4):
        numbers = [int(value.split()[0]) for value in stored[partition]]
        assert numbers == list(range(sent[partition])), f"partition {partition} lost, doubled or reordered records"
        assert acknowledged[partition] == set(numbers)


def test_a_group_goes_on_after_a_kill(broker_process):
    create_topic(broker_process, "work", 2)
    producer = Producer({"bootstrap.servers": broker_process.bootstrap_servers, "log_level": 0})
    for number in range(100):
        producer.produce("work", str(number), partition=number % 2)
    assert producer.flush(10) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker_process.bootstrap_servers,
            "group.id": "workers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.subscribe(["work"])
    read: list[bytes] = []

    def read_until(count):
        deadline = time.monotonic() + 20
        while len(read) < count:
            assert time.monotonic() < deadline, f"{len(read)} of {count} read"
            read.extend(message.value() for message in consumer.consume(50, 0.1) if message.error() is None)

    try:
        read_until(100)
        consumer.commit(asynchronous=False)
        broker_process.kill()
        broker_process.start()
        for number in range(100, 140):
            producer.produce("work", str(number), partition=number % 2)
        assert producer.flush(20) == 0
        read_until(140)
        deadline = time.monotonic() + 20
        while True:
            try:
                consumer.commit(asynchronous=False)
                break
            except KafkaException:
                assert time.monotonic() < deadline
                consumer.consume(1, 0.1)
        committed = consumer.committed([TopicPartition("work", 0), TopicPartition("work", 1)], 10)
    finally:
        consumer.close()
    assert [partition.offset for partition in committed] == [70, 70]
    assert sorted(map(int, read)) == list(range(140)), "committed records were read again"


def test_an_open_transaction_survives_a_kill_and_can_be_committed(broker_process):
    create_topic(broker_process, "books", 2)
    producer = Producer(
        {
            "bootstrap.servers": broker_process.bootstrap_servers,
            "transactional.id": "bookkeeper",
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("books", b"before", partition=0)
    assert producer.flush(10) == 0
    broker_process.kill()
    broker_process.start()
    assert read_all(broker_process, "books", 2) == [[], []]
    producer.produce("books", b"after", partition=1)
    producer.commit_transaction(20)
    assert read_all(broker_process, "books", 2) == [[b"before"], [b"after"]]


@pytest.mark.parametrize(("decision", "expected"), [("committing", [[b"one"], [b"two"]]), ("aborting", [[], []])])
def test_a_decision_is_carried_out_after_a_kill(broker_process, tmp_path, decision, expected):
    """The kill falls between the decision in the journal and the first marker."""
    create_topic(broker_process, "books", 2)
    producer = Producer(
        {
            "bootstrap.servers": broker_process.bootstrap_servers,
            "transactional.id": "bookkeeper",
            "log_level": 0,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("books", b"one", partition=0)
    producer.produce("books", b"two", partition=1)
    assert producer.flush(10) == 0
    broker_process.kill()
    journal = tmp_path / "data" / "broker" / "transactions.jsonl"
    last = Journal(journal).load()[-1]
    assert last[4] == "ongoing"
    last[4] = decision
    last[7] = [["readers", "books", 0, 1, -1, ""]]
    changed = Journal(journal)
    changed.load()
    changed.append([last])
    broker_process.start()
    assert read_all(broker_process, "books", 2) == expected
    consumer = Consumer({"bootstrap.servers": broker_process.bootstrap_servers, "group.id": "readers"})
    try:
        (committed,) = consumer.committed([TopicPartition("books", 0)], 10)
    finally:
        consumer.close()
    assert (committed.offset == 1) is (decision == "committing")


def test_topics_settings_and_producer_ids_survive(broker_process):
    create_topic(broker_process, "kept", 3, **{"retention.ms": "98765", "cleanup.policy": "compact"})
    create_topic(broker_process, "dropped", 3)
    admin = AdminClient({"bootstrap.servers": broker_process.bootstrap_servers, "log_level": 0})
    admin.delete_topics(["dropped"])["dropped"].result(10)
    cluster_id = admin.describe_cluster().result(10).cluster_id
    broker_process.kill()
    broker_process.start()
    admin = AdminClient({"bootstrap.servers": broker_process.bootstrap_servers})
    topics = admin.list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"kept": 3}
    assert admin.describe_cluster().result(10).cluster_id == cluster_id


def test_sigterm_ends_with_zero_and_leaves_nothing_to_verify(broker_process, tmp_path):
    create_topic(broker_process, "kept")
    producer = Producer({"bootstrap.servers": broker_process.bootstrap_servers, "log_level": 0})
    producer.produce("kept", b"value")
    assert producer.flush(10) == 0
    assert broker_process.terminate() == 0
    folder = tmp_path / "data" / "broker" / "logs" / "kept-0"
    decoded = SparseIndex.decode((folder / "00000000000000000000.index").read_bytes())
    assert decoded is not None
    assert decoded[1].size_bytes == (folder / "00000000000000000000.log").stat().st_size > 0
    broker_process.start()
    assert read_all(broker_process, "kept") == [[b"value"]]
    assert "Traceback" not in broker_process.log()


def test_rest_is_cheap(broker_process):
    """Memory and processor time of a broker that nobody uses."""
    create_topic(broker_process, "idle", 8)
    before = broker_process.cpu_seconds()
    time.sleep(2)
    assert broker_process.cpu_seconds() - before <= 0.05
    assert broker_process.memory_mib() < 60
