"""Messages to records: each batch is decoded once, what cannot be decoded becomes a reject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agl_stream.consumers.record import Partition, Record
from agl_stream.consumers.rejects import Rejects
from agl_stream.errors import DecodeError, EngineUnreachable
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

Message = Any
"""A consumed confluent_kafka.Message; its stubs call optional what a consumed message always has."""

Persistently = Callable[..., Any]
"""Calls its first argument with the others until no engine is missing."""


class Decoder:
    """Decodes the messages of some topics. A record of a wrong or unreadable event is written to ``rejects``."""

    def __init__(self, settings: Settings, topics: Sequence[str], codec: Codec, rejects: Rejects) -> None:
        self._codec = codec
        self._rejects = rejects
        self._expected: Mapping[str, tuple[str, str]] = {
            settings.topic(name): (name, TOPICS[name].event) for name in topics
        }

    def decode(
        self, messages: Sequence[Message], persistently: Persistently
    ) -> tuple[list[Record], dict[Partition, int]]:
        """The records, and for each partition the offset after its last message, decoded or not.

        Raises TooManyRejects. Rejects are on their way afterwards, durable after ``rejects.flush``.
        """
        expected = self._expected
        records: list[Record] = []
        # per partition: offset after the last message, and how many were accepted since the last reject
        runs: dict[Partition, list[int]] = {}
        for message in messages:
            topic, wanted = expected[message.topic()]
            number, offset, value = message.partition(), message.offset(), message.value()
            run = runs.get((topic, number))  # type: ignore[call-overload]
            if run is None:
                run = runs[Partition(topic, number)] = [0, 0]
            run[0] = offset + 1
            try:
                event_type, event, body_at = self._decode_one(value, message.headers(), persistently)
                if event_type != wanted:
                    raise WrongEvent(f"{event_type} on {topic}, which carries {wanted}")
            except DecodeError as error:
                self._rejects.accept(Partition(topic, number), run[1])
                run[1] = 0
                source = Record(topic, number, offset, 0, message.key(), value or b"", "", {})
                persistently(self._rejects.reject, source, error.reason_code, str(error))
                continue
            timestamp_ms = message.timestamp()[1]
            if not event["event_id"]:
                event["event_id"] = event_id(topic, number, offset)
                body_at = -1
            if not event["occurred_at_us"]:
                event["occurred_at_us"] = timestamp_ms * 1000
                body_at = -1
            run[1] += 1
            records.append(
                Record(topic, number, offset, timestamp_ms, message.key(), value, event_type, event, body_at)
            )
        for partition, (_, accepted) in runs.items():
            self._rejects.accept(partition, accepted)
        return records, {partition: next_offset for partition, (next_offset, _) in runs.items()}

    def _decode_one(self, value: bytes | None, headers: Any, persistently: Persistently) -> tuple[str, Event, int]:
        try:
            return self._codec.decode_placed(value, headers)
        except EngineUnreachable:
            # the registry is away and the schema id is new: nothing can be said of the record until it is back
            return persistently(self._codec.decode_placed, value, headers)


class WrongEvent(DecodeError):
    """The value is an event, and another topic's."""

    reason_code = "wrong_event"
