"""Reading topics as they stand: no consumer group, nothing committed, nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from agl_stream.cli.engines import broker_unreachable, client_config, reach_broker
from agl_stream.errors import NotFound
from agl_stream.settings import Settings

_POLL_SECONDS = 0.5
_BATCH = 500


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it lies on the log. `topic` is without namespace; `timestamp_ms` is since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class LogReader:
    """Reads partitions by explicit assignment. Use it as a context manager.

    Constructing it reaches the broker: EngineUnreachable when none answers.
    """

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Consumer

        self._settings = settings
        self._admin, metadata = reach_broker(settings)
        self._partitions = {name: sorted(topic.partitions) for name, topic in metadata.topics.items()}
        self._consumer = Consumer(
            {
                **client_config(settings),
                # librdkafka demands a group id; with assign() and without commits no group ever exists.
                "group.id": f"{settings.namespace}.cli",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
                "fetch.wait.max.ms": 50,
            }
        )

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def has(self, topic: str) -> bool:
        return self._settings.topic(topic) in self._partitions

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic (name without namespace); NotFound when it does not exist."""
        wire_name = self._settings.topic(topic)
        try:
            return self._partitions[wire_name]
        except KeyError:
            raise NotFound(
                f"topic {wire_name} does not exist at {self._settings.bootstrap_servers}; "
                "`agl-stream topics apply` creates it, AGL_STREAM_NAMESPACE (--namespace) chooses the prefix"
            ) from None

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition -> (first offset, offset after the last record), as of now."""
        return {partition: self._bounds_of(topic, partition) for partition in self.partitions(topic)}

    def _bounds_of(self, topic: str, partition: int) -> tuple[int, int]:
        place = _at(self._settings.topic(topic), partition)
        return self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=10))

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Partition -> first offset whose record is not older than the time (the end when there is none)."""
        wire_name = self._settings.topic(topic)
        wanted = [_at(wire_name, partition, timestamp_ms) for partition in self.partitions(topic)]
        found = self._ask(
            lambda: self._consumer.offsets_for_times(wanted, timeout=self._settings.connect_timeout_seconds)
        )
        bounds = self.bounds(topic)
        return {p.partition: p.offset if p.offset >= 0 else bounds[p.partition][1] for p in found}

    def read_to_end(
        self, topic: str, *, start: Mapping[int, int] | None = None, partitions: list[int] | None = None
    ) -> Iterator[RawRecord]:
        """Records from `start` (else the beginning) up to the end as it is now; partitions interleave.

        Ends also where compaction or transactions left gaps before the end.
        """
        wire_name = self._settings.topic(topic)
        ends: dict[int, int] = {}
        positions: dict[int, int] = {}
        for partition, (low, high) in self.bounds(topic).items():
            first = max(low, (start or {}).get(partition, low))
            if first < high and (partitions is None or partition in partitions):
                ends[partition], positions[partition] = high, first
        self._consumer.assign([_at(wire_name, p, offset) for p, offset in positions.items()])
        open_partitions = set(ends)
        while open_partitions:
            for message in self._consume():
                partition, offset = message.partition(), message.offset()
                if partition in open_partitions and offset < ends[partition]:
                    yield _raw(topic, message)
            for place in self._consumer.position([_at(wire_name, p) for p in open_partitions]):
                if place.offset >= ends[place.partition]:
                    open_partitions.discard(place.partition)
        self._consumer.unassign()

    def follow(self, topic: str, start: Mapping[int, int]) -> Iterator[RawRecord | None]:
        """Records of the partitions in `start`, from there on, for ever; None whenever nothing came for a moment."""
        wire_name = self._settings.topic(topic)
        self._consumer.assign([_at(wire_name, partition, offset) for partition, offset in start.items()])
        while True:
            messages = self._consume()
            for message in messages:
                yield _raw(topic, message)
            if not messages:
                yield None

    def group_lag(self, groups: list[str]) -> dict[str, dict[str, int]]:
        """Group -> topic (without namespace) -> records it has not committed past.

        A group counts for the topics it has committed offsets of; a group unknown to the broker is left out.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        lag: dict[str, dict[str, int]] = {}
        prefix = self._settings.topic("")
        ends: dict[str, dict[int, tuple[int, int]]] = {}
        for group in groups:
            (answer,) = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
            try:
                offsets = answer.result(timeout=self._settings.connect_timeout_seconds).topic_partitions or []
            except KafkaException:
                continue
            for place in offsets:
                if place.offset < 0 or place.topic not in self._partitions or not place.topic.startswith(prefix):
                    continue
                topic = place.topic.removeprefix(prefix)
                if topic not in ends:
                    ends[topic] = self.bounds(topic)
                low, high = ends[topic].get(place.partition, (0, 0))
                behind = max(0, high - max(place.offset, low))
                lag.setdefault(group, {}).setdefault(topic, 0)
                lag[group][topic] += behind
        return lag

    def groups(self) -> list[str]:
        """Consumer groups of this namespace."""
        answer = self._ask(
            lambda: self._admin.list_consumer_groups().result(timeout=self._settings.connect_timeout_seconds)
        )
        prefix = f"{self._settings.namespace}."
        return sorted(g.group_id for g in answer.valid if g.group_id.startswith(prefix))

    def _consume(self) -> list[Any]:
        messages = self._ask(lambda: self._consumer.consume(_BATCH, timeout=_POLL_SECONDS))
        good = []
        for message in messages:
            if (error := message.error()) is None:
                good.append(message)
            elif error.fatal() or not error.retriable():
                raise broker_unreachable(self._settings, error.str())
        return good

    def _ask(self, call: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return call()
        except KafkaException as error:
            raise broker_unreachable(self._settings, error.args[0].str()) from None


def _at(wire_name: str, partition: int, offset: int | None = None) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(wire_name, partition) if offset is None else TopicPartition(wire_name, partition, offset)


def _raw(topic: str, message: Any) -> RawRecord:
    return RawRecord(
        topic,
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or [],
    )
