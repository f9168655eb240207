"""Reads the ``resources`` topic up to its end whenever the fold needs to know what exists."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

from agl_stream.errors import DecodeError, EngineUnreachable
from agl_stream.producers.client_logging import client_logger
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.lifecycle.resources import ResourceView

logger = logging.getLogger(__name__)

_TOPIC = "resources"


class ResourceReader:
    """Follows the topic without a group. Not thread-safe; belongs to the thread that folds."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._settings = settings
        self._codec = codec
        self._view = ResourceView()
        self._positions: dict[int, int] = {}
        self._consumer: Any = None
        self._admin: Any = None

    def view(self) -> ResourceView:
        """The view, holding everything that was acknowledged before this call.

        Blocks for a round trip, and while there is news to read. Raises EngineUnreachable when the broker does not
        answer within ``connect_timeout_seconds``.
        """
        deadline = time.monotonic() + self._settings.connect_timeout_seconds
        if self._consumer is None:
            self._consumer = self._open(deadline)
            self._admin = AdminClient(
                {"bootstrap.servers": self._settings.bootstrap_servers, "client.id": "agl-lifecycle-resource-ends"},
                logger=client_logger("lifecycle-resources"),
            )
        behind = {number: end for number, end in self._ends(deadline).items() if self._positions.get(number, 0) < end}
        while behind:
            if time.monotonic() > deadline:
                raise self._unreachable("what was published cannot be read in time")
            for message in self._consumer.consume(500, timeout=0.1):
                self._take(message)
            behind = {number: end for number, end in behind.items() if self._positions.get(number, 0) < end}
        return self._view

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self, deadline: float) -> Any:
        name = self._settings.topic(_TOPIC)
        consumer = Consumer(
            {
                "bootstrap.servers": self._settings.bootstrap_servers,
                "client.id": "agl-lifecycle-resources",
                # no group is joined and nothing is committed; the client library wants a name all the same
                "group.id": self._settings.group("lifecycle-resources"),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 1000,
            },
            logger=client_logger("lifecycle-resources"),
        )
        try:
            found = consumer.list_topics(name, timeout=_remaining(deadline)).topics[name]
        except KafkaException as error:
            consumer.close()
            raise self._unreachable(error.args[0].str()) from None
        if not found.partitions:
            consumer.close()
            raise EngineUnreachable(f"topic {name} does not exist; run `agl-stream topics apply`")
        consumer.assign([TopicPartition(name, number, self._positions.get(number, 0)) for number in found.partitions])
        self._positions = {number: self._positions.get(number, 0) for number in found.partitions}
        return consumer

    def _ends(self, deadline: float) -> dict[int, int]:
        """The end of each partition, asked over a connection of its own: on the consumer's the question would wait
        behind a fetch that waits for news."""
        name = self._settings.topic(_TOPIC)
        asked = self._admin.list_offsets(
            {TopicPartition(name, number): OffsetSpec.latest() for number in self._positions}
        )
        try:
            return {place.partition: answer.result(_remaining(deadline)).offset for place, answer in asked.items()}
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        except TimeoutError:
            raise self._unreachable("no answer") from None

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # compaction may have removed the last records: the end counts as read
                self._positions[message.partition()] = max(self._positions[message.partition()], message.offset())
            else:
                logger.warning("reading %s: %s", message.topic(), error.str())
            return
        self._positions[message.partition()] = message.offset() + 1
        if message.value() is None:
            return
        try:
            event_type, event = self._codec.decode(message.value(), message.headers())
        except DecodeError as problem:
            logger.warning("%s offset %d is skipped: %s", message.topic(), message.offset(), problem)
            return
        if event_type == "ResourcesPublished":
            self._view.published({**event, "occurred_at_us": event["occurred_at_us"] or message.timestamp()[1] * 1000})

    def _unreachable(self, detail: str) -> EngineUnreachable:
        return EngineUnreachable(
            f"the lifecycle cannot read {self._settings.topic(_TOPIC)} at {self._settings.bootstrap_servers} within "
            f"AGL_STREAM_CONNECT_TIMEOUT_SECONDS={self._settings.connect_timeout_seconds:g}: {detail}"
        )


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)
