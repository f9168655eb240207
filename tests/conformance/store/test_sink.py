"""The sink over each store: what it has made of the log is what the model makes of it, whatever happened meanwhile.

The log is a real one on the embedded broker, the sink a thread or a process of ours; the stores are those of the
other cases.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings
from agl_stream.streams.materialise.app import TOPICS as KEPT
from agl_stream.streams.materialise.app import run_sink
from agl_stream.streams.store import open_store
from tests.conformance.store.backends import Database
from tests.conformance.store.course import answers, write_log
from tests.conformance.store.events import span
from tests.conformance.store.model import Model
from tests.streams.makers import Placed
from tests.streams.running import Part, make_topics, spawn, wait_until

LOGS = 6
SPANS = 6000


@pytest.fixture
def settings(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Of a log of its own, which the database belongs to."""
    database.open().close()
    with BrokerThread(registry=True) as broker:
        made = replace(
            database.settings,
            bootstrap_servers=broker.bootstrap_servers,
            registry_url=broker.registry_url,
            partitions=2,
            linger_ms=1.0,
            session_timeout_seconds=3.0,
            register_schemas=True,
        )
        monkeypatch.setenv("AGL_STREAM_STORE_URL", made.store_url)
        monkeypatch.setenv("AGL_STREAM_REGISTER_SCHEMAS", "true")
        make_topics(made)
        yield made


def write(settings: Settings, seed: int, spans: int = 0) -> None:
    """A log of everything, spans among it."""
    log = write_log(seed)
    with EventProducer(settings, name="test") as producer:
        for (topic, _), records in log.partitions.items():
            producer.deliver(topic, [(None, record.event) for record in records])
        producer.deliver("spans", [(None, span(f"ro-{seed}-{n % 20}", f"x{n}", n)) for n in range(spans)])


def read_log(settings: Settings) -> dict[tuple[str, int], list[Placed]]:
    """Everything that the sink has to keep, as it stands on the log."""
    codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace))
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "the-model"})
    found: dict[tuple[str, int], list[Placed]] = {}
    for topic in KEPT:
        for number in range(TOPICS[topic].partitions or settings.partitions):
            wire = TopicPartition(settings.topic(topic), number, 0)
            end = reader.get_watermark_offsets(wire, 10)[1]
            reader.assign([wire])
            told = found[topic, number] = []
            while len(told) < end:
                for message in reader.consume(1000, 1.0):
                    told.append(Placed(topic, number, message.offset(), codec.decode(message.value())[1]))
    reader.close()
    return found


class Truth:
    """What the model makes of the log as it stands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        log = read_log(settings)
        self._ends = {place: len(told) for place, told in log.items() if told}
        self._asked = write_log(0)
        self._asked.rollout_ids = [f"ro-{seed}-{n}" for seed in range(LOGS) for n in range(20)]
        model = Model()
        for told in log.values():
            model.apply(told)
        self._wanted = answers(model, self._asked)

    def wait(self) -> None:
        """Until the store has applied the log to its end; then every answer is the model's."""
        with closing(open_store(self._settings)) as store:
            wait_until(lambda: store.applied_offsets() == self._ends, 90)
            found = answers(store, self._asked)
        for question, answer in self._wanted.items():
            assert found[question] == answer, question


def test_what_is_on_the_log_is_in_the_store(settings: Settings) -> None:
    for seed in range(LOGS):
        write(settings, seed)
    with Part(run_sink, settings):
        Truth(settings).wait()


def test_two_sinks_share_the_log(settings: Settings) -> None:
    with Part(run_sink, settings), Part(run_sink, settings):
        for seed in range(LOGS):
            write(settings, seed)
        Truth(settings).wait()


def test_data_whose_offsets_were_lost_is_read_again(settings: Settings) -> None:
    """Killed between the data and its offsets, and with commits that the group has and the store has not."""
    for seed in range(3):
        write(settings, seed)
    with Part(run_sink, settings):
        Truth(settings).wait()
    with closing(open_store(settings, read_only=False)) as store:
        for topic, partition in store.applied_offsets():
            if topic in ("rollouts", "spans", "triplets", "rejects"):
                store.restart(topic, partition)
    for seed in range(3, LOGS):
        write(settings, seed)
    with Part(run_sink, settings):
        Truth(settings).wait()


def test_a_sink_killed_at_any_moment(settings: Settings) -> None:
    luck = random.Random(f"{time.time():.0f}")
    process = spawn(settings, "streams", "--only", "sink")
    try:
        for seed in range(LOGS):
            write(settings, seed, spans=SPANS // LOGS)
            pause = luck.random() * 0.3
            print(f"killed {pause:.3f} s after log {seed}")
            ended_within(process, pause)
            process.kill()
            process.wait()
            process = spawn(settings, "streams", "--only", "sink")
        Truth(settings).wait()
    finally:
        process.kill()
        process.wait()


def ended_within(process: subprocess.Popen[Any], seconds: float) -> None:
    """Let the process work for that long; it must not end by itself."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)


@pytest.mark.slow
def test_a_sink_paused_past_its_session_changes_nothing_when_it_goes_on(settings: Settings) -> None:
    """It may hold a batch of partitions that are another's by now; what it still writes is old and stays harmless."""
    paused = spawn(settings, "streams", "--only", "sink")
    try:
        write(settings, 0, spans=SPANS)
        pause(paused, settings)
        with Part(run_sink, settings):
            for seed in range(1, LOGS):
                write(settings, seed)
            truth = Truth(settings)
            truth.wait()
            os.kill(paused.pid, signal.SIGCONT)
            # it is awake once it is a member again, or has a batch written again
            wait_until(members_are(settings, 2), 60)
            truth.wait()
    finally:
        paused.kill()
        paused.wait()


def pause(process: subprocess.Popen[Any], settings: Settings) -> None:
    """Stop it where it stands; but over a file, not while it holds the file's lock, which nobody could take from it."""
    file = settings.folder / "state.db"
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        if settings.store_url:
            return
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)
                ended_within(process, 0.01)


def members_are(settings: Settings, count: int) -> Callable[[], bool]:
    from confluent_kafka.admin import AdminClient

    admin, group = AdminClient({"bootstrap.servers": settings.bootstrap_servers}), settings.group("sink")

    def look() -> bool:
        described = admin.describe_consumer_groups([group])[group].result(10)
        return len(described.members) == count

    return look
