"""Configuration of the Kafka consumers of the batch loop, and which of their errors mean what."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError

from agl_stream import connections
from agl_stream.settings import Settings

SOMEBODY_ELSE_WILL = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    }
)
"""Errors of a commit after which the partitions have another owner, who starts from the last good commit."""

MAX_POLL_INTERVAL_MS = 300_000


def consumer_config(settings: Settings, *, group: str, logger: logging.Logger, partition_eof: bool) -> dict[str, Any]:
    """A group member that commits by hand, holds little, and finds a restarted broker within a second."""
    session_ms = int(settings.session_timeout_seconds * 1000)
    return {
        **connections.librdkafka(settings),
        "group.id": settings.group(group),
        "client.id": f"agl-{group}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        # keeps equal partition numbers of two topics with one member
        "partition.assignment.strategy": "range",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(session_ms // 5, 100),
        "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
        "enable.partition.eof": partition_eof,
        "allow.auto.create.topics": False,
        # a topic that is created later is found soon
        "topic.metadata.refresh.interval.ms": 10_000,
        "fetch.wait.max.ms": 250,
        # what is fetched ahead bounds the memory of a batch; a full queue is looked at again at once
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 10,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "fetch.error.backoff.ms": 100,
        "socket.keepalive.enable": True,
        "error_cb": lambda error: logger.warning(
            "broker at %s: %s (%s); still trying", settings.bootstrap_servers, error.str(), error.name()
        ),
    }
