"""Starting aiokafka consumers with errors a person can act on."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError

from agl_stream.errors import EngineUnreachable
from agl_stream.settings import Settings

_RETRY_SECONDS = 0.2


async def start_or_raise(consumer: AIOKafkaConsumer, settings: Settings) -> None:
    """Start ``consumer``; raises EngineUnreachable when, for ``connect_timeout_seconds``, no broker answers or the
    topics do not exist."""
    deadline = time.monotonic() + settings.connect_timeout_seconds
    while True:
        try:
            await consumer.start()
            return
        except (KafkaConnectionError, UnknownTopicOrPartitionError) as error:
            if time.monotonic() > deadline:
                await consumer.stop()
                raise _unreachable(error, settings) from None
            await asyncio.sleep(_RETRY_SECONDS)


def _unreachable(error: Exception, settings: Settings) -> EngineUnreachable:
    if isinstance(error, UnknownTopicOrPartitionError):
        return EngineUnreachable(
            f"the broker at {settings.bootstrap_servers} has no topics of namespace {settings.namespace!r}; run "
            "`agl-stream topics apply`, or set AGL_STREAM_NAMESPACE"
        )
    return EngineUnreachable(
        f"no Kafka broker answers at {settings.bootstrap_servers} within {settings.connect_timeout_seconds:g} s; "
        "start one with `agl-stream up`, or set AGL_STREAM_BOOTSTRAP_SERVERS"
    )
