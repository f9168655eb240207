"""Reading on when the log was cut below a follower: an error where data is lost, a warning where only the newest
matters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from trainer_makers import joined

from agl_stream.consumers.record import Partition
from agl_stream.errors import AglStreamError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.trainer.log_follower import LogFollower

FIRST = Partition("triplets", 0)


def send(producer: EventProducer, first: int, last: int) -> None:
    for number in range(first, last):
        producer.send("triplets", joined(f"ro-{number}"), partition=0)
    producer.flush()


def cut(settings: Settings, offset: int) -> None:
    """Deletes partition 0 of triplets below ``offset``, as retention does."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(settings.topic("triplets"), 0, offset)]).values():
        future.result(30)


def poll_until(follower: LogFollower, rollout_id: str) -> list[str]:
    """Rollouts in the order they were read, up to ``rollout_id``."""
    found: list[str] = []
    deadline = time.monotonic() + 30
    while rollout_id not in found:
        assert time.monotonic() < deadline, found
        found += [record.event["rollout_id"] for record in follower.poll(0.2)]
    return found


@pytest.fixture
def overtaken(settings: Settings, producer: EventProducer) -> Iterator[Any]:
    """Makes a follower that stands at the end (offset 10) of a log, which then is cut at 20 before it polls."""
    made: list[LogFollower] = []

    def make(**options: Any) -> LogFollower:
        send(producer, 0, 10)
        follower = LogFollower(settings, ["triplets"], producer, name="test", from_end=True, **options)
        made.append(follower)
        # the client fetches ahead on its own: only a closed gate keeps it at its place
        follower._client.pause([TopicPartition(settings.topic("triplets"), 0)])
        send(producer, 10, 22)
        cut(settings, 20)
        follower._client.resume([TopicPartition(settings.topic("triplets"), 0)])
        return follower

    yield make
    for follower in made:
        follower.close()


def test_records_lost_by_retention_while_following_are_an_error_with_a_remedy(overtaken: Any) -> None:
    follower = overtaken()
    with pytest.raises(AglStreamError, match=r"holds offsets 20 to 22, and test wants to go on at 10.*retention\.ms"):
        poll_until(follower, "ro-21")


def test_who_needs_only_the_newest_goes_on_with_what_is_left(
    overtaken: Any, producer: EventProducer, caplog: pytest.LogCaptureFixture
) -> None:
    follower = overtaken(pass_over_lost=True)
    assert poll_until(follower, "ro-21") == ["ro-20", "ro-21"]
    assert "holds offsets 20 to 22, and test wants to go on at 10: the log was cut or replaced; going on at 20" in (
        caplog.text
    )
    send(producer, 22, 25)
    assert poll_until(follower, "ro-24") == ["ro-22", "ro-23", "ro-24"]
    assert follower.positions[FIRST] == 25


def test_a_place_that_the_log_has_lost_before_the_start(
    settings: Settings, producer: EventProducer, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, 0, 10)
    cut(settings, 5)
    with pytest.raises(AglStreamError, match="holds offsets 5 to 10, and test wants to go on at 3"):
        LogFollower(settings, ["triplets"], producer, name="test", start={FIRST: 3})
    with LogFollower(settings, ["triplets"], producer, name="test", start={FIRST: 3}, pass_over_lost=True) as follower:
        assert poll_until(follower, "ro-9") == [f"ro-{number}" for number in range(5, 10)]
    assert "going on at 5" in caplog.text
