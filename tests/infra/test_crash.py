"""The broker dies in the middle of any change of any file, or the power goes: what it acknowledged is there again.

Every test prints its seed through its parameters, so a failure can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.faults

TARGETS = {
    # part of the file's name: about how many changes the workload makes of such files
    ".log": 150,
    ".cleaned": 40,
    ".swap": 10,
    ".index": 30,
    ".snapshot": 20,
    "offsets.jsonl": 12,
    "transactions.jsonl": 40,
    "catalogue.json": 10,
    "start-offset": 4,
    "cleaner": 8,
}
NEVER = "no file has this name"
SECONDS = 60.0
PLAIN, KEYS, TRANSACTIONS = 150, 5, 6


class DyingBroker:
    """A child on one folder and one port."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder = folder
        self.platter = folder.with_name("platter")
        self._policy = policy
        self.port = 0

    def start(self, target: str = NEVER, countdown: int = 1, seed: int = 0) -> None:
        script = Path(__file__).with_name("dying_broker.py")
        arguments = [self.folder, self.port, self._policy, target, countdown, seed, self.platter]
        with self.folder.with_name("broker.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *map(str, arguments)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            self.port = int(json.loads(line)["bootstrap_servers"].rpartition(":")[2])
        assert line or target != NEVER, self.log()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if not self.is_dead():
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def cut_power(self) -> None:
        """Put in place what a power cut at the death has left."""
        shutil.rmtree(self.folder)
        self.platter.rename(self.folder)

    def log(self) -> str:
        return self.folder.with_name("broker.log").read_text()


class Keeper:
    """Starts the broker again when it has died, beside clients that may be waiting for it in a call."""

    def __init__(self, broker: DyingBroker, power: bool) -> None:
        self._broker = broker
        self._power = power
        self._deaths = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.02):
                if self._broker.is_dead():
                    self._deaths += 1
                    assert self._deaths == 1, self._broker.log()
                    self._broker.kill()
                    if self._power:
                        self._broker.cut_power()
                    self._broker.start()
        except BaseException as failure:
            self._failure = failure

    def check(self) -> None:
        if self._failure is not None:
            raise AssertionError("the broker does not come back") from self._failure

    def stop(self) -> bool:
        """Whether the broker has died of its disk."""
        self._stop.set()
        self._thread.join()
        self.check()
        return self._deaths > 0


class Workload:
    """Clients that go on across the death of the broker, and what was acknowledged to them."""

    def __init__(self, broker: DyingBroker, keep_alive) -> None:
        self._broker = broker
        self._keep_alive = keep_alive
        common = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 100}
        self._common = common
        self.acknowledged: list[int] = []
        self.failed: list[KafkaError] = []
        self.committed_offset = -1
        self.committed_transactions: list[int] = []
        self.aborted_transactions: list[int] = []
        self.created: list[str] = []
        self.start_offset = 0
        self._producer = Producer({**common, "enable.idempotence": True, "linger.ms": 0})
        self._admin = AdminClient(common)
        self._group = Consumer({**common, "group.id": "readers", "enable.auto.commit": False})

    def _insist(self, attempt) -> None:
        """Repeat what a client is told to repeat, until it is done."""
        deadline = time.monotonic() + SECONDS
        while True:
            self._keep_alive()
            try:
                attempt()
                return
            except KafkaException as error:
                assert time.monotonic() < deadline, error
                time.sleep(0.05)

    def create(self, name: str, **config: str) -> None:
        def attempt() -> None:
            try:
                new = NewTopic(name, 1, 1, config={key.replace("_", "."): value for key, value in config.items()})
                self._admin.create_topics([new], request_timeout=2)[name].result(3)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._insist(attempt)
        self.created.append(name)

    def run(self) -> None:
        self.create("plain", segment_bytes="4096", retention_ms="-1")
        self.create(
            "keyed",
            segment_bytes="1024",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            delete_retention_ms="0",
        )
        self.create("books", segment_bytes="1024", retention_ms="-1")
        for step in range(TRANSACTIONS):
            self._produce_some(step)
            self._transact(step)
            self._insist(lambda step=step: self._commit(step + 1))
            if step % 2 == 1:
                self.create(f"extra-{step}")
                self._insist(lambda step=step: self._delete_records(step))
        self._finish_producing()

    def _produce_some(self, step: int) -> None:
        def delivered(error, message) -> None:
            if error is not None:
                self.failed.append(error)
            elif message.topic() == "plain":
                self.acknowledged.append(int(message.value().split()[0]))

        each = PLAIN // TRANSACTIONS
        for number in range(step * each, (step + 1) * each):
            self._producer.produce("plain", b"%d " % number + b"x" * 60, partition=0, on_delivery=delivered)
            value = None if number % 7 == 0 else b"%d" % number
            key = b"key %d" % (number % KEYS)
            self._producer.produce("keyed", value, key=key, partition=0, on_delivery=delivered)
            self._producer.poll(0)
            if number % 4 == 0:
                self._finish_producing()

    def _finish_producing(self) -> None:
        deadline = time.monotonic() + SECONDS
        while self._producer.flush(0.1):
            self._keep_alive()
            assert time.monotonic() < deadline, "the producer makes no progress"

    def _transact(self, step: int) -> None:
        """One transaction of a producer of its own; one that fails fatally is begun again, as applications do."""
        commit = step % 4 != 3

        def attempt() -> None:
            writer = Producer({**self._common, "transactional.id": "bookkeeper", "transaction.timeout.ms": 30_000})
            writer.init_transactions(5)
            writer.begin_transaction()
            writer.produce("books", b"%d first" % step, partition=0)
            writer.produce("books", b"%d second" % step, partition=0)
            position = [TopicPartition("plain", 0, 1000 + step)]
            writer.send_offsets_to_transaction(position, self._group.consumer_group_metadata(), 5)
            self._keep_alive()
            if not commit:
                writer.abort_transaction(5)
                return
            deciding.append(step)
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    writer.commit_transaction(2)
                    return
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
                    self._keep_alive()
                    assert time.monotonic() < deadline, error

        deciding: list[int] = []
        self._insist(attempt)
        (self.committed_transactions if commit else self.aborted_transactions).append(step)

    def _commit(self, offset: int) -> None:
        self._group.commit(offsets=[TopicPartition("keyed", 0, offset)], asynchronous=False)
        self.committed_offset = offset

    def _delete_records(self, step: int) -> None:
        offset = step * 5
        position = TopicPartition("plain", 0, offset)
        self._admin.delete_records([position], request_timeout=2)[position].result(3)
        self.start_offset = offset

    # Afterwards

    def check(self) -> None:
        assert not self.failed, self.failed[:3]
        assert sorted(self.acknowledged) == list(range(len(self.acknowledged))) == list(range(PLAIN))
        plain = read(self._broker, "plain")
        numbers = [int(value.split()[0]) for _, _, value in plain]
        assert numbers == list(range(self.start_offset, PLAIN)), "lost, doubled, reordered, or deleted and back again"
        assert [offset for offset, _, _ in plain] == numbers
        latest: dict[bytes, bytes | None] = {}
        for number in range(PLAIN):
            latest[b"key %d" % (number % KEYS)] = None if number % 7 == 0 else b"%d" % number
        found = {key: value for _, key, value in read(self._broker, "keyed")}
        assert {k: v for k, v in found.items() if v is not None} == {k: v for k, v in latest.items() if v is not None}
        books: dict[int, list[bytes]] = {}
        for _, _, value in read(self._broker, "books"):
            step, _, part = value.partition(b" ")
            books.setdefault(int(step), []).append(part)
        for step, parts in books.items():
            assert parts in ([b"first", b"second"], [b"first", b"second"] * 2), f"half of transaction {step}: {parts}"
        assert set(self.committed_transactions) <= set(books)
        assert not set(self.aborted_transactions) & set(books)
        committed = self._group.committed([TopicPartition("keyed", 0), TopicPartition("plain", 0)], 10)
        assert committed[0].offset == self.committed_offset
        assert committed[1].offset == 1000 + self.committed_transactions[-1]
        topics = self._admin.list_topics(timeout=10).topics
        assert set(topics) == set(self.created)
        assert "Traceback" not in self._broker.log()

    def close(self) -> None:
        self._group.close()


def read(broker: DyingBroker, topic: str) -> list[tuple[int, bytes | None, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes | None, bytes]] = []
    try:
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None
            error = message.error()
            if error is None:
                found.append((message.offset(), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(error)
    finally:
        consumer.close()


def die_and_go_on(folder: Path, seed: int, *, policy: str, power: bool) -> bool:
    """Whether the broker died of its disk; it is killed at the end in any case."""
    chance = random.Random(seed)
    target = chance.choice(list(TARGETS))
    countdown = chance.randint(1, TARGETS[target])
    print(f"seed {seed}: {policy}, dies at change {countdown} of {target}")
    broker = DyingBroker(folder, policy)
    broker.start(target, countdown, seed)
    died_at_start = not broker.port
    if died_at_start:
        broker.kill()
        if power and broker.platter.exists():
            broker.cut_power()
        broker.start()
    keeper = Keeper(broker, power)
    workload = Workload(broker, keeper.check)
    try:
        workload.run()
        died = keeper.stop() or died_at_start
        if not died:
            broker.kill()
            broker.start()
        workload.check()
        broker.kill()
        broker.start()
        workload.check()
    finally:
        keeper.stop()
        broker.kill()
        workload.close()
    print("died of its disk" if died else "was killed at the end")
    return died


SEEDS = int(os.environ.get("AGL_TEST_CRASH_SEEDS", "12"))
"""Of each of the long tests; 40 take eight minutes."""


@pytest.mark.parametrize("seed", range(1))
def test_a_kill_in_the_middle_of_a_change(tmp_path, seed):
    die_and_go_on(tmp_path / "broker", seed, policy="close", power=False)


@pytest.mark.parametrize("seed", range(100, 101))
def test_a_power_cut_under_every_write(tmp_path, seed):
    die_and_go_on(tmp_path / "broker", seed, policy="every-write", power=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1_000, 1_000 + SEEDS))
def test_kills_anywhere(tmp_path, seed):
    die_and_go_on(tmp_path / "broker", seed, policy="close", power=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2_000, 2_000 + SEEDS))
def test_power_cuts_anywhere(tmp_path, seed):
    die_and_go_on(tmp_path / "broker", seed, policy="every-write", power=True)
