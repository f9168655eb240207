"""Reading topics by explicit assignment, from offsets of one's own: what a learner and a server do.

No consumer group is involved and nothing is committed: a learner's place is in its checkpoint, a server's place is
the end of the log.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from agl_stream import connections, leaders
from agl_stream.consumers.decoding import Decoder
from agl_stream.consumers.record import Partition, Record
from agl_stream.consumers.rejects import RejectLimits, Rejects
from agl_stream.errors import AglStreamError, EngineUnreachable, NotFound
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings

log = logging.getLogger(__name__)

Offsets = Mapping[Partition, int]
_BATCH = 1000
# the first is what the broker answers; with auto.offset.reset=error the client makes the second of it
_CUT = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class LogFollower:
    """All partitions of some topics, read in order within each. Not thread-safe; one thread owns it.

    A record that cannot be decoded is written to rejects and passed over. A broker that is away is waited for: a poll
    then returns nothing. ``positions`` says where reading goes on, after everything that ``poll`` has returned.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        producer: EventProducer,
        *,
        name: str,
        start: Offsets | None = None,
        from_end: bool = False,
        pass_over_lost: bool = False,
    ) -> None:
        """Begins at ``start`` where it names a partition, else at the beginning, or with ``from_end`` at the end as it
        is now. Raises EngineUnreachable, or NotFound for a topic that does not exist.

        What the log has lost before it was read (retention, a topic made anew) is an error of the constructor and of
        ``poll``. With ``pass_over_lost``, for whom only the newest matters, it is a warning, and reading goes on from
        what the log still has.
        """
        self._settings = settings
        self._name = name
        self._pass_over_lost = pass_over_lost
        self._client = Consumer(_config(settings, name))
        rejects = Rejects(
            producer, rejected_by=name, limits=RejectLimits(consecutive=settings.reject_limit_consecutive)
        )
        codec = Codec(connections.registry_client(settings))
        self._decoder = Decoder(settings, topics, codec, rejects)
        self._rejects = rejects
        self._cut: set[Partition] = set()
        self.positions: dict[Partition, int] = {}
        for partition in self._partitions(topics):
            low, high = self._bounds(partition)
            given = (start or {}).get(partition)
            if given is None:
                self.positions[partition] = high if from_end else low
            elif low <= given <= high:
                self.positions[partition] = given
            else:
                self.positions[partition] = self._after_loss(partition, given, low, high)
        self._client.assign([self._place(p, offset) for p, offset in self.positions.items()])

    def poll(self, timeout_seconds: float) -> list[Record]:
        """What has come, at most a thousand records; waits up to ``timeout_seconds`` for the first.

        Raises AglStreamError when the log was cut above the place of a partition, see the constructor.
        """
        messages: list[Any] = []
        first = self._client.poll(timeout_seconds)
        if first is not None:
            # the first wait is for news, this one only empties the queue
            messages = [first, *self._client.consume(_BATCH - 1, timeout=0)]
        good: list[Any] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() in _CUT:
                self._cut |= {p for p in self.positions if self._wire(p) == (message.topic(), message.partition())}
            elif error.fatal():
                raise AglStreamError(f"reading {message.topic()} failed: {error.str()}")
            else:
                log.warning("reading %s: %s; still trying", message.topic(), error.str())
        records, nexts = self._decoder.decode(good, _once)
        self.positions.update(nexts)
        self._rejects.flush()
        if self._cut:
            self._go_on_after_loss()
        return records

    def _go_on_after_loss(self) -> None:
        try:
            bounds = {partition: self._bounds(partition) for partition in self._cut}
        except EngineUnreachable as error:
            log.warning("%s; still trying", error)
            return
        for partition, (low, high) in bounds.items():
            self.positions[partition] = self._after_loss(partition, self.positions[partition], low, high)
        # the client has given these partitions up; assigned anew it reads again
        self._client.assign([self._place(p, offset) for p, offset in self.positions.items()])
        self._cut.clear()

    def _after_loss(self, partition: Partition, wanted: int, low: int, high: int) -> int:
        """Where to go on instead of at ``wanted``, which the log does not have; raises where that would not do."""
        topic, _ = self._wire(partition)
        lost = (
            f"{topic} partition {partition.number} holds offsets {low} to {high}, and {self._name} wants to go on at "
            f"{wanted}: the log was cut or replaced"
        )
        if not self._pass_over_lost:
            raise AglStreamError(
                f"{lost}, what lay between is lost to it; restore the topic and raise its retention.ms or "
                "retention.bytes, or start under another --learner-id"
            )
        log.warning("%s; going on at %d", lost, low)
        return low

    def _wire(self, partition: Partition) -> tuple[str, int]:
        return self._settings.topic(partition.topic), partition.number

    def read_to_end(self, timeout_seconds: float = 30.0) -> list[Record]:
        """Everything up to the end as it is now; for topics that are small. EngineUnreachable when it takes longer."""
        ends = {partition: self._bounds(partition)[1] for partition in self.positions}
        found: list[Record] = []
        deadline = time.monotonic() + timeout_seconds
        while any(self._position(partition) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise self._unreachable(f"reading to the end took more than {timeout_seconds:g} s")
            found += self.poll(0.05)
        return found

    def close(self) -> None:
        """Leaves the broker."""
        self._client.close()

    def __enter__(self) -> LogFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _position(self, partition: Partition) -> int:
        # compaction and transactions leave gaps: the client's position passes them, the last record's offset does not
        (place,) = self._client.position([self._place(partition)])
        return max(self.positions[partition], place.offset)

    def _partitions(self, topics: Sequence[str]) -> list[Partition]:
        try:
            known = self._client.list_topics(timeout=self._settings.connect_timeout_seconds).topics
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        found: list[Partition] = []
        for topic in topics:
            wire_name = self._settings.topic(topic)
            if wire_name not in known:
                raise NotFound(f"topic {wire_name} does not exist; `agl-stream topics apply` creates it")
            found += [Partition(topic, number) for number in sorted(known[wire_name].partitions)]
        return found

    def _bounds(self, partition: Partition) -> tuple[int, int]:
        place = self._place(partition)

        def question(seconds: float) -> tuple[int, int]:
            bounds = self._client.get_watermark_offsets(place, timeout=seconds)
            if bounds is None:
                raise TimeoutError("no answer to a question about offsets")
            return bounds

        try:
            return leaders.ask(self._client, [place.topic], question, self._settings.connect_timeout_seconds)
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        except TimeoutError as error:
            raise self._unreachable(str(error)) from None

    def _place(self, partition: Partition, offset: int | None = None) -> TopicPartition:
        wire_name = self._settings.topic(partition.topic)
        if offset is None:
            return TopicPartition(wire_name, partition.number)
        return TopicPartition(wire_name, partition.number, offset)

    def _unreachable(self, what: str) -> EngineUnreachable:
        return EngineUnreachable(
            f"the Kafka broker at {self._settings.bootstrap_servers} does not answer ({what}); start one with "
            "`agl-stream up`, or set AGL_STREAM_BOOTSTRAP_SERVERS"
        )


def _once(call: Any, *arguments: Any, **named: Any) -> Any:
    return call(*arguments, **named)


def _config(settings: Settings, name: str) -> dict[str, Any]:
    return {
        **connections.librdkafka(settings),
        # the client demands a group; with assign() and without commits none ever exists
        "group.id": f"{settings.namespace}.{name}.{uuid.uuid4().hex[:8]}",
        "client.id": f"agl-{name}",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": False,
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 500,
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 16_384,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "fetch.error.backoff.ms": 100,
        "logger": logging.getLogger(f"agl_stream.kafka.{name}"),
        "error_cb": lambda error: log.warning(
            "broker at %s: %s; still trying", settings.bootstrap_servers, error.str()
        ),
    }
