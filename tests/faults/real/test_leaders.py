"""Clients that only ask about the log find the new leaders of a dead broker's partitions while it stays dead."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.cli.log_reader import LogReader
from agl_stream.consumers.log_questions import LogQuestions
from agl_stream.consumers.record import Partition
from agl_stream.errors import EngineUnreachable, NotFound
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.streams.group_offsets import GroupOffsets
from agl_stream.streams.log_tail import LogTail
from agl_stream.trainer.log_follower import LogFollower

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

PARTITIONS = range(6)
Questions = dict[str, Callable[[], Any]]


@pytest.fixture
def settings(brokers: Kafka, tmp_path: Path) -> Settings:
    made = Settings(
        register_schemas=True,
        bootstrap_servers=brokers.bootstrap_servers,
        namespace="l" + uuid.uuid4().hex[:6],
        dir=str(tmp_path),
    )
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    topic = made.topic("spans")
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 3)])[topic].result(60)
    return made


@pytest.fixture
def questions(settings: Settings, registry_url: str) -> Iterator[Questions]:
    """What each kind of client is asked; each has been answered once, so that it knows the leaders."""
    topic = settings.topic("spans")
    with ExitStack() as stack:
        tail = LogTail(settings, topic, name="tail")
        stack.callback(tail.close)
        offsets = GroupOffsets(settings, settings.group("sink"))
        stack.callback(offsets.close)
        asker = LogQuestions(settings, "sink")
        stack.callback(asker.close)
        reader = stack.enter_context(LogReader(settings))
        producer = EventProducer(settings, name="tests")
        stack.callback(producer.close)
        follower = stack.enter_context(_follower(settings, producer))
        asked: Questions = {
            "LogTail": lambda: tail.ends(PARTITIONS),
            "GroupOffsets": lambda: offsets.ask([(topic, number) for number in PARTITIONS]),
            "LogQuestions": lambda: asker.end_offsets([Partition("spans", number) for number in PARTITIONS]),
            "LogReader": lambda: reader.bounds("spans"),
            "LogFollower": lambda: [follower._bounds(Partition("spans", number)) for number in PARTITIONS],
        }
        for question in asked.values():
            _until_answered(question, 60)
        yield asked


def test_a_question_finds_the_new_leader(brokers: Kafka, questions: Questions) -> None:
    victim = brokers.nodes[1]
    victim.kill()
    try:
        took = {name: _until_answered(question, 30) for name, question in questions.items()}
        assert not victim.running
        print({name: round(seconds, 1) for name, seconds in took.items()})
    finally:
        victim.start()
        victim.wait_ready()


def _follower(settings: Settings, producer: EventProducer) -> LogFollower:
    """A broker may be asked that has not heard of the new topic yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return LogFollower(settings, ["spans"], producer, name="follower")
        except NotFound:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _until_answered(question: Callable[[], Any], seconds: float) -> float:
    """Seconds until the answer; the error of the last try when there is none in time."""
    started = time.monotonic()
    while True:
        try:
            question()
            return time.monotonic() - started
        except EngineUnreachable:
            if time.monotonic() - started > seconds:
                raise
