"""What the joiner says, put on the log. What the log cannot take is said in another way: nothing waits for it."""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError

from agl_stream.consumers.record import Record
from agl_stream.consumers.rejects import reject_event
from agl_stream.errors import DeliveryFailed, EncodeError, RecordTooLarge
from agl_stream.producers.delivery import describe
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.joiner.outcome import without_triplets

logger = logging.getLogger(__name__)


class Outgoing(NamedTuple):
    """An event to write; ``partition`` None: by key. ``source``: the record it is a copy of, where it is one."""

    topic: str
    event: Event
    partition: int | None = None
    source: Record | None = None


class _Unwritable(NamedTuple):
    outgoing: Outgoing
    reason_code: str
    detail: str


class Writer:
    """Writes through ``producer``, which nobody else writes through at the same time."""

    def __init__(self, producer: EventProducer) -> None:
        self._producer = producer

    def __call__(self, outgoing: list[Outgoing]) -> None:
        """Return when all is acknowledged. An event that is too large, or that its schema does not fit, is replaced:
        triplets by the same event without triplets and a reject, anything else by a reject. Raises DeliveryFailed,
        BufferFull and TimeoutError; the same call may then be made again."""
        while outgoing:
            outgoing = [other for unwritable in self._write(outgoing) for other in _instead(unwritable)]

    def _write(self, outgoing: list[Outgoing]) -> list[_Unwritable]:
        unwritable: list[_Unwritable] = []
        failures: list[str] = []

        def landed(each: Outgoing, error: KafkaError | None, _: object) -> None:
            if error is None:
                return
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                unwritable.append(_Unwritable(each, "record_too_large", describe(error, each.topic)))
            else:
                failures.append(describe(error, each.topic))

        for each in outgoing:
            try:
                self._producer.send(each.topic, each.event, partition=each.partition, on_delivery=partial(landed, each))
            except RecordTooLarge as error:
                unwritable.append(_Unwritable(each, "record_too_large", str(error)))
            except EncodeError as error:
                unwritable.append(_Unwritable(each, "unencodable", str(error)))
        self._producer.settle()
        if failures:
            raise DeliveryFailed(f"{len(failures)} event(s) are not on the log, the first for {failures[0]}")
        return unwritable


def _instead(unwritable: _Unwritable) -> list[Outgoing]:
    """What to write in its place."""
    (topic, event, partition, source), reason_code, detail = unwritable
    logger.error("an event for %s cannot be written (%s): %s", topic, reason_code, detail)
    if topic == "rejects":
        return []
    reject = Outgoing("rejects", _reject(topic, event, source, reason_code, detail))
    if topic == "triplets" and event["triplets"]:
        return [Outgoing(topic, without_triplets(event, reason_code, detail), partition), reject]
    return [reject]


class _Unplaced(NamedTuple):
    """Stands for a record that is not on the log."""

    topic: str
    key: bytes
    partition: int = -1
    offset: int = -1
    value: bytes = b""


def _reject(topic: str, event: Event, source: Record | None, reason_code: str, detail: str) -> Event:
    made = reject_event(
        source or _Unplaced(topic, event["rollout_id"].encode()),
        reason_code,
        detail,
        rejected_by="joiner",
        rollout_id=event["rollout_id"],
        attempt_id=event["attempt_id"],
    )
    if source is None:
        made["event_id"] = event_id("reject", topic, event["event_id"], reason_code)
    # what was read was sound and stays where it is; what was to be written is nowhere
    return {**made, "payload": None}
