"""Questions about the log beyond its records: ends, commits, partition counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from agl_stream import leaders
from agl_stream.consumers.client import consumer_config
from agl_stream.consumers.record import Partition
from agl_stream.errors import EngineUnreachable
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings

_ASK_SECONDS = 10.0


class LogQuestions:
    """Asks the broker, for a handler that runs beside its loop.

    Has a client of its own, connected with the first question: confluent-kafka serialises the calls of a client, so
    a question on the loop's own would wait for its poll, and for ever during a rebalance, which waits for the
    handler. Every method raises EngineUnreachable when there is no answer in time. Thread-safe.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        """``group`` without namespace: whose commits are asked for. It is not joined."""
        self._settings = settings
        self._group = group
        self._lock = threading.Lock()
        self._client: Consumer | None = None

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The end of each partition as of now, in one request."""
        asked = list(partitions)
        wire = [TopicPartition(self._settings.topic(p.topic), p.number, -1) for p in asked]
        answers = self._ask(wire, lambda client, seconds: client.offsets_for_times(wire, timeout=seconds))
        return {partition: answer.offset for partition, answer in zip(asked, answers, strict=True)}

    def committed_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """What the group has committed; partitions without a commit are left out."""
        asked = list(partitions)
        wire = [TopicPartition(self._settings.topic(p.topic), p.number) for p in asked]
        answers = self._ask(wire, lambda client, seconds: client.committed(wire, timeout=seconds))
        return {p: answer.offset for p, answer in zip(asked, answers, strict=True) if answer.offset >= 0}

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic (name without namespace); a topic that does not exist counts as no answer."""
        wire = self._settings.topic(topic)
        with self._lock:
            try:
                found = self._connected().list_topics(wire, timeout=_ASK_SECONDS).topics[wire]
            except KafkaException as error:
                raise self._unreachable(error) from None
        if found.error is not None or not found.partitions:
            raise EngineUnreachable(f"topic {wire} does not exist yet; run `agl-stream topics apply`")
        return len(found.partitions)

    def close(self) -> None:
        """Disconnect; a later question connects again."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _ask(
        self, asked: list[TopicPartition], question: Callable[[Consumer, float], list[TopicPartition]]
    ) -> list[TopicPartition]:
        with self._lock:
            client = self._connected()
            try:
                return leaders.ask(
                    client,
                    {place.topic for place in asked},
                    lambda seconds: leaders.raise_errors(question(client, seconds)),
                    _ASK_SECONDS,
                )
            except KafkaException as error:
                raise self._unreachable(error) from None

    def _connected(self) -> Consumer:
        if self._client is None:
            logger = client_logger(f"{self._group}-questions")
            config = consumer_config(self._settings, group=self._group, logger=logger, partition_eof=False)
            self._client = Consumer(config, logger=logger)
        return self._client

    def _unreachable(self, error: KafkaException) -> EngineUnreachable:
        return EngineUnreachable(
            f"the broker at {self._settings.bootstrap_servers} does not answer a question about offsets: "
            f"{error.args[0].str()}; is it up? AGL_STREAM_BOOTSTRAP_SERVERS says where it is looked for"
        )
