"""Reading topics as they stand: no consumer group, nothing committed, nothing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from agl_stream.cli.reach import broker_unreachable, client_config, new_admin_client, reach_broker
from agl_stream.errors import AglStreamError, EngineUnreachable, NotFound
from agl_stream.settings import Settings

_POLL_SECONDS = 0.5
_BATCH = 500
_FIRST, _END = -2, -1  # Times that stand for the ends of a partition in Kafka's ListOffsets.


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
        self._following: dict[str, str] = {}
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
                "queued.max.messages.kbytes": 8192,
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
        return self._bounds([topic])[topic]

    def _bounds(self, topics: Iterable[str]) -> dict[str, dict[int, tuple[int, int]]]:
        """Bounds of several topics, in two requests to the broker however many partitions there are."""
        named = {self._settings.topic(topic): topic for topic in topics}
        places = [(wire_name, p) for wire_name, topic in named.items() for p in self.partitions(topic)]
        lows, highs = (
            self._offsets_for_times([_at(wire_name, p, mark) for wire_name, p in places]) for mark in (_FIRST, _END)
        )
        bounds: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in named.values()}
        for low, high in zip(lows, highs, strict=True):
            bounds[named[low.topic]][low.partition] = (low.offset, high.offset)
        return bounds

    def _offsets_for_times(self, places: list[Any]) -> list[Any]:
        if not places:
            return []  # The client takes an empty list for an error.
        from agl_stream import leaders

        def question(seconds: float) -> list[Any]:
            return leaders.raise_errors(self._consumer.offsets_for_times(places, timeout=seconds))

        topics = {place.topic for place in places}
        timeout = self._settings.connect_timeout_seconds
        return self._ask(lambda: leaders.ask(self._consumer, topics, question, timeout))

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Partition -> first offset whose record is not older than the time (the end when there is none)."""
        wire_name = self._settings.topic(topic)
        wanted = [_at(wire_name, partition, timestamp_ms) for partition in self.partitions(topic)]
        found = self._offsets_for_times(wanted)
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
        stalled_at = time.monotonic() + self._settings.connect_timeout_seconds
        while open_partitions:
            for record in self._consume(topic_names={wire_name: topic}, seconds=_POLL_SECONDS):
                if record.partition in open_partitions and record.offset < ends[record.partition]:
                    yield record
            for place in self._consumer.position([_at(wire_name, p) for p in open_partitions]):
                if place.offset > positions[place.partition]:
                    positions[place.partition] = place.offset
                    stalled_at = time.monotonic() + self._settings.connect_timeout_seconds
                if place.offset >= ends[place.partition]:
                    open_partitions.discard(place.partition)
            if time.monotonic() > stalled_at:
                raise broker_unreachable(self._settings, f"no records of {wire_name} come any more")
        self._consumer.unassign()

    def follow(self, starts: Mapping[str, Mapping[int, int]]) -> None:
        """From now on `poll` returns records of these topics and partitions, each from the offset given."""
        self._following = {self._settings.topic(topic): topic for topic in starts}
        self._consumer.assign(
            [
                _at(self._settings.topic(topic), partition, offset)
                for topic, offsets in starts.items()
                for partition, offset in offsets.items()
            ]
        )

    def poll(self, seconds: float) -> list[RawRecord]:
        """Records that came since the last call, waiting up to `seconds` for the first.

        A broker that is away for a while only makes this return nothing.
        """
        return self._consume(topic_names=self._following, seconds=seconds)

    def group_lag(self, groups: list[str]) -> dict[str, dict[str, int]]:
        """Group -> topic (without namespace) -> records it has not committed past.

        A group counts for the topics it has committed offsets of; one without any is left out.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        prefix = self._settings.topic("")
        committed: list[tuple[str, str, int, int]] = []
        for group in groups:
            request = [ConsumerGroupTopicPartitions(group)]
            found = self._ask_admin(lambda admin, r=request: next(iter(admin.list_consumer_group_offsets(r).values())))
            places = found.topic_partitions or []
            committed += [
                (group, place.topic.removeprefix(prefix), place.partition, place.offset)
                for place in places
                if place.offset >= 0 and place.topic in self._partitions and place.topic.startswith(prefix)
            ]
        bounds = self._bounds({topic for _, topic, _, _ in committed})
        lag: dict[str, dict[str, int]] = {}
        for group, topic, partition, offset in committed:
            low, high = bounds[topic].get(partition, (0, 0))
            of_group = lag.setdefault(group, {})
            of_group[topic] = of_group.get(topic, 0) + max(0, high - max(offset, low))
        return lag

    def groups(self) -> list[str]:
        """Consumer groups of this namespace."""
        answer = self._ask_admin(lambda admin: admin.list_consumer_groups())
        prefix = f"{self._settings.namespace}."
        return sorted(g.group_id for g in answer.valid if g.group_id.startswith(prefix))

    def _consume(self, *, topic_names: Mapping[str, str], seconds: float) -> list[RawRecord]:
        records: list[RawRecord] = []
        # The first record may be waited for, those behind it not: consume() alone would wait for a whole batch.
        first = self._ask(lambda: self._consumer.poll(seconds))
        if first is None:
            return records
        for message in [first, *self._ask(lambda: self._consumer.consume(_BATCH, timeout=0))]:
            error = message.error()
            if error is None:
                records.append(_raw(topic_names[message.topic()], message))
            # Codes below zero are the client's own: connections lost and found again. The broker's are answers.
            elif error.fatal() or (error.code() > 0 and not error.retriable()):
                raise AglStreamError(f"{message.topic() or 'the log'} cannot be read: {error.str()}")
        return records

    def _ask_admin(self, call: Callable[[Any], Any]) -> Any:
        """The answer to a question to the cluster; `call` gets the client and returns a future."""
        try:
            return self._ask(lambda: call(self._admin).result(timeout=self._settings.connect_timeout_seconds))
        except EngineUnreachable:
            # This client never asks a group's coordinator again once that one has been restarted; a new one does.
            self._admin = new_admin_client(self._settings)
            raise

    def _ask(self, call: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return call()
        except KafkaException as error:
            raise broker_unreachable(self._settings, error.args[0].str()) from None
        except TimeoutError:
            raise broker_unreachable(self._settings, "no answer in time") from None


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
