"""Starting aiokafka consumers with errors a person can act on, and a log that can be read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from agl_stream import connections
from agl_stream.errors import EngineUnreachable
from agl_stream.producers.client_logging import FloodGate, client_logger
from agl_stream.settings import Settings

_RETRY_SECONDS = 0.2
_REFUSAL_SECONDS = 2.0


async def start_or_raise(consumer: AIOKafkaConsumer, settings: Settings) -> None:
    """Start ``consumer``; raises EngineUnreachable when, for ``connect_timeout_seconds``, no broker answers or the
    topics it was made with do not exist, AccessRefused when a broker does not let this client in."""
    calm_client_logs()
    try:
        async with asyncio.timeout(settings.connect_timeout_seconds):
            await _start(consumer)
    except TimeoutError:
        # the client is connected and waits for topics, or never was
        connected = bool(consumer._client.cluster.brokers())
        await consumer.stop()
        if not connected:
            await asyncio.to_thread(_raise_refusal, settings)
        raise _unreachable(settings, connected) from None


async def _start(consumer: AIOKafkaConsumer) -> None:
    while True:
        try:
            return await consumer.start()
        except KafkaConnectionError:
            await asyncio.sleep(_RETRY_SECONDS)


def _raise_refusal(settings: Settings) -> None:
    """Raise AccessRefused if that is why nobody answers: aiokafka keeps it to itself."""
    refusal = connections.Refusal(settings)
    config: dict[str, Any] = {"client.id": "agl-runner-start", "error_cb": refusal.note}
    client = AdminClient({**connections.librdkafka(settings), **config}, logger=client_logger("runner-start"))
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=_REFUSAL_SECONDS)
    client.poll(0)
    refusal.check()


def _unreachable(settings: Settings, connected: bool) -> EngineUnreachable:
    within = f"within {settings.connect_timeout_seconds:g} s"
    if connected:
        return EngineUnreachable(
            f"the broker at {settings.bootstrap_servers} shows no topics of namespace {settings.namespace!r} {within}; "
            "run `agl-stream topics apply`, or set AGL_STREAM_NAMESPACE"
        )
    return EngineUnreachable(
        f"no Kafka broker answers at {settings.bootstrap_servers} {within}; "
        "start one with `agl-stream up`, or set AGL_STREAM_BOOTSTRAP_SERVERS"
    )


_gate = FloodGate()


def _is_news(record: logging.LogRecord) -> bool:
    return "because it is rebalancing" not in str(record.msg)


def calm_client_logs() -> None:
    """aiokafka warns of every rebalance, and says the same ten times a second while a broker is away."""
    for name in list(logging.root.manager.loggerDict):
        if name == "aiokafka" or name.startswith("aiokafka."):
            # adding a filter a second time changes nothing
            logging.getLogger(name).addFilter(_is_news)
            logging.getLogger(name).addFilter(_gate)
