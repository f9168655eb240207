"""Questions that one broker alone can answer: the leader of a partition, the coordinator of a group.

librdkafka puts such a question to the broker that it knows. When that one has died it goes on waiting for it: by
itself it looks for a successor only where it reads or writes at the moment, and else after minutes. So a question
is put for a short while at a time, and between two tries the client is made to look who leads now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

_T = TypeVar("_T")

_TRY_SECONDS = 2.0
_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.1

_PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError._UNKNOWN_PARTITION,  # said of a partition whose leader is not known at the moment
        KafkaError._DESTROY_BROKER,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Errors that another try may not meet: of brokers that die, start or hand over. All others are answers."""


def ask(client: Any, topics: Collection[str], question: Callable[[float], _T], timeout_seconds: float) -> _T:
    """What ``question(seconds)`` answers, which is called until it does, each time with a few seconds.

    ``client`` is the client that it asks with, ``topics`` (full names) those it asks about. Blocks up to
    ``timeout_seconds`` and a little; then, or at once where another try would not help, raises what the question
    raised (KafkaException, TimeoutError).
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return question(max(min(_TRY_SECONDS, deadline - time.monotonic()), _PAUSE_SECONDS))
        except (KafkaException, TimeoutError) as error:
            passing = isinstance(error, TimeoutError) or error.args[0].code() in _PASSING
            if not passing or time.monotonic() >= deadline:
                raise
        _look_anew(client, topics, deadline)
        time.sleep(_PAUSE_SECONDS)


def raise_errors(answers: list[Any]) -> list[Any]:
    """The partitions that a client answered with; raises KafkaException with the first error among them, so that the
    question can be put again."""
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers


def _look_anew(client: Any, topics: Collection[str], deadline: float) -> None:
    """Have the client ask any broker for the present leaders."""
    for topic in topics:
        seconds = min(_LOOK_SECONDS, deadline - time.monotonic())
        if seconds <= 0:
            return
        try:
            client.list_topics(topic, timeout=seconds)
        except KafkaException:
            return  # Nobody answers: the question, put again, says so.
