"""A broker's data folder with one of everything in it: what `tests/golden/broker-folder-v*` hold, and how to check it.

`python tests/infra/test_folder_versions.py FOLDER [--kill]` writes one with the installed version. A folder
of a released format is kept for ever and never written again; a new format adds a folder.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.seal import seal
from agl_stream.infra.embedded.server.broker import EmbeddedBroker
from agl_stream.infra.embedded.storage import FORMAT, check_format
from agl_stream.infra.embedded.testing import BrokerThread

CALM = BrokerConfig(group_initial_rebalance_delay_ms=0, housekeeping_seconds=3_600)
"""Nothing is expired, though what is in the folder may be years old."""
PLAIN = [f"plain {number}".encode() for number in range(40)]
KEYED = {b"kept": b"last word", b"other": b"39"}
COMMITTED = [b"committed 0", b"committed 1"]
START_OFFSET = 7
OPEN_PRODUCER = "left-open"


def fill(bootstrap_servers: str) -> None:
    """Topics, records, transactions (committed, aborted, open), offsets, a start offset: all that is kept."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [
        NewTopic("plain", 2, 1, config={"segment.bytes": "1024", "retention.ms": "-1"}),
        NewTopic("keyed", 1, 1, config={"cleanup.policy": "compact", "segment.bytes": "1024"}),
        NewTopic("books", 1, 1, config={"retention.ms": "-1"}),
    ]
    for created in admin.create_topics(topics).values():
        created.result(10)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
    for value in PLAIN:
        producer.produce("plain", value, partition=0)
        producer.flush(10)
    for number in range(40):
        producer.produce("keyed", str(number), key=b"other", partition=0)
        producer.produce("keyed", b"last word" if number == 39 else b"x" * 50, key=b"kept", partition=0)
        producer.flush(10)
    admin.delete_records([TopicPartition("plain", 0, START_OFFSET)])[TopicPartition("plain", 0)].result(10)
    for name, values in (("bookkeeper", COMMITTED), ("rejected", [b"aborted"]), (OPEN_PRODUCER, [b"open"])):
        writer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name})
        writer.init_transactions(10)
        writer.begin_transaction()
        for value in values:
            writer.produce("books", value, partition=0)
        writer.flush(10)
        if name == "bookkeeper":
            writer.commit_transaction(10)
        elif name == "rejected":
            writer.abort_transaction(10)
    reader = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers"})
    reader.commit(offsets=[TopicPartition("plain", 0, 21), TopicPartition("books", 0, 3)], asynchronous=False)
    reader.close()


def check(bootstrap_servers: str) -> None:
    """Assert that a broker on the folder serves what `fill` left in it, and goes on."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = admin.list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"plain": 2, "keyed": 1, "books": 1}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "plain")
    settings = admin.describe_configs([resource])[resource].result(10)
    assert (settings["segment.bytes"].value, settings["retention.ms"].value) == ("1024", "-1")
    plain = read_from_start(bootstrap_servers, "plain")
    assert plain == [(number, None, value) for number, value in enumerate(PLAIN) if number >= START_OFFSET]
    assert {key: value for _, key, value in read_from_start(bootstrap_servers, "keyed")} == KEYED
    assert [value for _, _, value in read_from_start(bootstrap_servers, "books")] == COMMITTED
    reader = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers"})
    committed = reader.committed([TopicPartition("plain", 0), TopicPartition("books", 0)], 10)
    reader.close()
    assert [partition.offset for partition in committed] == [21, 3]
    writer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": OPEN_PRODUCER})
    writer.init_transactions(10)  # aborts what its predecessor left open, and raises the epoch
    writer.begin_transaction()
    writer.produce("books", b"afterwards", partition=0)
    writer.commit_transaction(10)
    assert [value for _, _, value in read_from_start(bootstrap_servers, "books")] == [*COMMITTED, b"afterwards"]


def read_from_start(bootstrap_servers: str, topic: str) -> list[tuple[int, bytes | None, bytes]]:
    """(offset, key, value) of committed records of partition 0, from the first to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "golden",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes | None, bytes]] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, f"nothing came from {topic}"
        error = message.error()
        if error is None:
            found.append((message.offset(), message.key(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
        else:
            raise AssertionError(error)


GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("broker-folder-v*/*"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_folder_of_any_released_format_opens_and_goes_on(tmp_path, golden):
    folder = tmp_path / "data"
    shutil.copytree(golden, folder / "broker")
    with BrokerThread(folder, config=CALM) as broker:
        check(broker.bootstrap_servers)
    assert check_format(folder / "broker") == FORMAT
    with BrokerThread(folder, config=CALM) as broker:
        values = [value for _, _, value in read_from_start(broker.bootstrap_servers, "books")]
        assert values == [*COMMITTED, b"afterwards"]


def test_there_is_a_golden_folder_of_every_format():
    assert {path.parent.name for path in GOLDEN} == {f"broker-folder-v{number}" for number in range(1, FORMAT + 1)}


async def test_a_folder_of_a_newer_format_is_refused_and_left_alone(tmp_path):
    async with EmbeddedBroker(tmp_path) as broker:
        broker.node.catalogue.create("kept", 1, {})
    (tmp_path / "format").write_bytes(seal(b'{"format": %d}' % (FORMAT + 1)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(DamagedFile, match=rf"has format {FORMAT + 1} and .* up to {FORMAT}.*--dir"):
        await EmbeddedBroker(tmp_path).start()
    assert before == {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"
    }


async def test_an_unreadable_format_is_not_guessed_at(tmp_path):
    async with EmbeddedBroker(tmp_path):
        pass
    (tmp_path / "format").write_bytes(b"torn")
    with pytest.raises(DamagedFile, match="format is not readable"):
        await EmbeddedBroker(tmp_path).start()


def main(folder: Path, kill: bool) -> None:
    command = [sys.executable, "-m", "agl_stream.cli.main", "broker", "--output", "json", "--port", "0"]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        fill(json.loads(broker.stdout.readline())["bootstrap_servers"])
        broker.send_signal(signal.SIGKILL if kill else signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--kill" in sys.argv)
