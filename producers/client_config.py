"""How the Kafka client of a producer is set up, and what the process calls itself in its events."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
import time
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from agl_stream import connections
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings


def client_config(
    settings: Settings, name: str, linger_ms: float | None, refusal: connections.Refusal
) -> dict[str, Any]:
    """librdkafka's configuration: idempotent, acknowledged by all replicas, bounded, quick to find a broker again.
    ``refusal`` hears of its errors."""
    timeout_ms = int(settings.delivery_timeout_seconds * 1000)
    return {
        **connections.librdkafka(settings),
        "client.id": f"agl-{name}",
        "enable.idempotence": True,
        "acks": "all",
        # as Java clients do, so that a rollout's events meet in one partition number whoever writes them
        "partitioner": "murmur2_random",
        "linger.ms": settings.linger_ms if linger_ms is None else linger_ms,
        "compression.type": settings.compression,
        "message.timeout.ms": timeout_ms,
        "request.timeout.ms": min(30_000, timeout_ms),
        "message.max.bytes": settings.max_record_bytes + 1024,
        "queue.buffering.max.messages": settings.buffer_events,
        "queue.buffering.max.kbytes": max(settings.buffer_bytes // 1024, 1),
        # a broker that restarts is found again within a second
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": 5000,
        "socket.keepalive.enable": True,
        "error_cb": partial(_on_client_error, client_logger(name), refusal),
    }


def _on_client_error(logger: logging.Logger, refusal: connections.Refusal, error: KafkaError) -> None:
    refusal.note(error)
    logger.warning("%s (%s)", error.str(), error.name())


def instance() -> str:
    """One running process: host, process id, start."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}"


def version() -> str:
    """Version of the installed package."""
    try:
        return importlib.metadata.version("agl-stream")
    except importlib.metadata.PackageNotFoundError:
        return "unpackaged"
