"""Reads partitions of one topic up to their present end, without a consumer group. Blocking, for one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

from agl_stream import connections, leaders
from agl_stream.errors import EngineUnreachable
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings

_BATCH = 1000


class LogTail:
    """Keeps a position per partition between reads, so that each read brings only what is new."""

    def __init__(self, settings: Settings, topic: str, *, name: str) -> None:
        """``topic`` is the full name; ``name`` tells the client in logs."""
        self._settings = settings
        self._topic = topic
        self._name = name
        self._consumer: Any = None
        self._admin: Any = None
        self.positions: dict[int, int] = {}
        """Partition -> offset of the next record to read. To be changed by the owner only between reads, through
        ``follow``."""

    def partitions(self) -> list[int]:
        """The topic's partitions. Raises EngineUnreachable when there is no such topic or no broker."""
        deadline = self._deadline()
        try:
            found = self._client().list_topics(self._topic, timeout=_remaining(deadline)).topics[self._topic]
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        if not found.partitions:
            raise EngineUnreachable(f"topic {self._topic} does not exist; run `agl-stream topics apply`")
        return sorted(found.partitions)

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Where the log ends now: partition -> offset of the next record to come. Raises EngineUnreachable."""
        self._client()
        return self._ends(self._deadline(), partitions)

    def follow(self, positions: dict[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        if positions != self.positions or not positions:
            self.positions = dict(positions)
            self._client().assign([TopicPartition(self._topic, *place) for place in positions.items()])

    def read_to_end(self, take: Callable[[Any], None], seconds: float | None = None) -> None:
        """Give ``take`` every message up to the end that the log has now; offsets without records count as read.

        Raises EngineUnreachable when nothing comes for ``seconds`` (default: ``connect_timeout_seconds``).
        """
        deadline = self._deadline(seconds)
        behind = self._behind(self._ends(deadline, self.positions))
        while behind:
            messages = self._next()
            for message in messages:
                self._step(message, take)
            if messages:
                deadline = self._deadline(seconds)
            elif time.monotonic() > deadline:
                raise self._unreachable(f"partitions {sorted(behind)} cannot be read to their end")
            behind = self._behind(behind)

    def first_from(self, partition: int, offset: int) -> int | None:
        """Offset of the first record of ``partition`` at or after ``offset``; None when there is none yet."""
        found: list[int] = []
        self.follow({partition: offset})
        end = self._ends(self._deadline(), [partition])[partition]
        deadline = self._deadline()
        while not found and self.positions[partition] < end:
            for message in self._client().consume(1, timeout=0.1):
                self._step(message, lambda message: found.append(message.offset()))
            if time.monotonic() > deadline:
                raise self._unreachable(f"partition {partition} cannot be read at {offset}")
        return found[0] if found else None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = self._admin = None

    def _next(self) -> list[Any]:
        """What has been fetched. Not one ``consume`` with a timeout: that waits it out for a full batch."""
        first = self._client().poll(0.1)
        return [] if first is None else [first, *self._client().consume(_BATCH, timeout=0.0)]

    def _behind(self, ends: dict[int, int]) -> dict[int, int]:
        return {number: end for number, end in ends.items() if self.positions[number] < end}

    def _step(self, message: Any, take: Callable[[Any], None]) -> None:
        number, error = message.partition(), message.error()
        if error is None:
            self.positions[number] = message.offset() + 1
            take(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            # compaction may have removed the last records: the end counts as read
            self.positions[number] = max(self.positions[number], message.offset())

    def _ends(self, deadline: float, partitions: Iterable[int]) -> dict[int, int]:
        """Asked over a connection of its own: on the consumer's, the question would wait behind a fetch that waits
        for news."""
        places = {TopicPartition(self._topic, number): OffsetSpec.latest() for number in partitions}
        if not places:
            return {}

        def question(seconds: float) -> dict[int, int]:
            asked = self._admin.list_offsets(places, request_timeout=seconds)
            return {place.partition: answer.result(seconds + 1).offset for place, answer in asked.items()}

        try:
            return leaders.ask(self._admin, [self._topic], question, _remaining(deadline))
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        except TimeoutError:
            raise self._unreachable("no answer") from None

    def _client(self) -> Any:
        if self._consumer is None:
            common = {
                **connections.librdkafka(self._settings),
                "client.id": f"agl-{self._name}",
                "reconnect.backoff.max.ms": 1000,
            }
            logger = client_logger(self._name)
            self._admin = AdminClient(common, logger=logger)
            self._consumer = Consumer(
                {
                    **common,
                    # nothing is joined or committed; the client library wants a name all the same
                    "group.id": self._settings.group(self._name),
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    # as the lifecycle's own consumer reads, which must agree with this one on what there is
                    "isolation.level": "read_uncommitted",
                },
                logger=logger,
            )
        return self._consumer

    def _deadline(self, seconds: float | None = None) -> float:
        return time.monotonic() + (self._settings.connect_timeout_seconds if seconds is None else seconds)

    def _unreachable(self, detail: str) -> EngineUnreachable:
        return EngineUnreachable(
            f"{self._topic} at {self._settings.bootstrap_servers} cannot be read within "
            f"AGL_STREAM_CONNECT_TIMEOUT_SECONDS={self._settings.connect_timeout_seconds:g}: {detail}"
        )


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)
