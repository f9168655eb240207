"""A log directory without room, on a small file system of its own: retriable errors, nothing acknowledged lost."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.testing import BrokerThread
from tests.infra.test_crash import read

pytestmark = pytest.mark.faults

SIZE = "8m"
CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0, housekeeping_seconds=0.2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds 8 MiB and no more."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "agl-small-disk", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        block = bytes(65_536)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]
    return ballast


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def create(broker, name: str, **config: str) -> None:
    new = NewTopic(name, 1, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([new])[name].result(10)


def values(broker, topic: str) -> list[bytes]:
    return [value for _, _, value in read(broker, topic)]


def test_producers_wait_and_go_on_when_there_is_room(small_disk):
    with BrokerThread(small_disk, config=CONFIG) as broker:
        create(broker, "work", segment_bytes="65536")
        delivered: list[int] = []
        failed: list[KafkaError] = []

        def on_delivery(error, message) -> None:
            if error is not None:
                failed.append(error)
            else:
                delivered.append(int(message.value().split()[0]))

        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 50,
                "log_level": 0,
            }
        )
        for number in range(100):
            producer.produce("work", b"%d " % number + b"x" * 1_000, on_delivery=on_delivery)
        assert producer.flush(20) == 0
        ballast = fill(small_disk)
        refused = COUNTERS.refused_appends
        for number in range(100, 400):
            producer.produce("work", b"%d " % number + b"x" * 1_000, on_delivery=on_delivery)
        stop = threading.Event()
        poller = threading.Thread(target=lambda: [producer.poll(0.05) for _ in iter(stop.is_set, True)])
        poller.start()
        try:
            wait_for(lambda: COUNTERS.refused_appends > refused + 3)
            assert len(producer) > 0 and not failed
            read_while_full = [int(value.split()[0]) for value in values(broker, "work")]
            assert read_while_full == list(range(len(read_while_full))), "reads go on, without torn batches"
            assert set(delivered) <= set(read_while_full)
            ballast.unlink()
            wait_for(lambda: len(producer) == 0)
        finally:
            stop.set()
            poller.join()
        assert not failed
        assert delivered == list(range(400))
        assert [int(value.split()[0]) for value in values(broker, "work")] == list(range(400))
    with BrokerThread(small_disk, config=CONFIG) as broker:
        assert [int(value.split()[0]) for value in values(broker, "work")] == list(range(400))


def test_everything_else_is_refused_for_the_time_being_and_done_afterwards(small_disk):
    with BrokerThread(small_disk, config=CONFIG) as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        admin = AdminClient(address)
        create(broker, "work")
        writer = Producer({**address, "transactional.id": "bookkeeper", "transaction.timeout.ms": 60_000})
        writer.init_transactions(10)
        writer.begin_transaction()
        writer.produce("work", b"in a transaction")
        assert writer.flush(10) == 0
        consumer = Consumer({**address, "group.id": "readers", "enable.auto.commit": False})
        position = [TopicPartition("work", 0, 1)]
        consumer.commit(offsets=position, asynchronous=False)
        reserve = broker.data_dir / "broker" / "reserve"
        wait_for(reserve.exists)
        ballast = fill(small_disk)
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("more", 1, 1)])["more"].result(10)
        assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        resource = ConfigResource(ConfigResource.Type.TOPIC, "work", set_config={"retention.ms": "77"})
        with pytest.raises(KafkaException):
            admin.alter_configs([resource])[resource].result(10)
        assert "more" not in admin.list_topics(timeout=10).topics
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[TopicPartition("work", 0, 2, metadata="m" * 4_000)], asynchronous=False)
        assert consumer.committed(position, 10)[0].offset == 1
        with pytest.raises(KafkaException) as undecided:
            writer.send_offsets_to_transaction(
                [TopicPartition("work", 0, 1, metadata="m" * 4_000)], consumer.consumer_group_metadata(), 1
            )
        assert undecided.value.args[0].txn_requires_abort(), "librdkafka does not try again by itself here"
        ballast.unlink()
        writer.abort_transaction(20)
        writer.begin_transaction()
        writer.produce("work", b"in a transaction")
        writer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 10)
        writer.commit_transaction(20)
        assert values(broker, "work") == [b"in a transaction"]
        create(broker, "more")
        consumer.commit(offsets=[TopicPartition("work", 0, 2)], asynchronous=False)
        consumer.close()
    with BrokerThread(small_disk, config=CONFIG) as broker:
        assert values(broker, "work") == [b"in a transaction"]


def test_retention_and_deletion_make_room_on_a_full_disk(small_disk):
    with BrokerThread(small_disk, config=CONFIG) as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        admin = AdminClient(address)
        create(broker, "big", segment_bytes="65536", retention_ms="4000")
        create(broker, "doomed")
        wait_for((broker.data_dir / "broker" / "reserve").exists)
        producer = Producer({**address, "linger.ms": 0, "batch.size": 16_000})
        for topic, count in (("doomed", 200), ("big", 2_000)):
            for _ in range(count):
                producer.produce(topic, b"x" * 1_000)
            assert producer.flush(20) == 0
        fill(small_disk)
        admin.delete_topics(["doomed"])["doomed"].result(10)
        assert "doomed" not in admin.list_topics(timeout=10).topics
        fill(small_disk)
        for _ in range(600):  # for which there is no room until retention frees some
            producer.produce("big", b"y" * 1_000)
        assert producer.flush(30) == 0
        log = broker.broker.node.catalogue.partition("big", 0)
        assert log is not None
        wait_for(lambda: log.start_offset >= 2_000)


def test_a_start_on_a_full_disk_serves_what_is_there(small_disk):
    with BrokerThread(small_disk, config=CONFIG) as broker:
        create(broker, "work", segment_bytes="65536")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for number in range(300):
            producer.produce("work", b"%d " % number + b"x" * 1_000)
        assert producer.flush(10) == 0
        fill(small_disk)
    with BrokerThread(small_disk, config=CONFIG) as broker:
        assert [int(value.split()[0]) for value in values(broker, "work")] == list(range(300))
