"""What a partition remembers of its producers: sequences (idempotence) and open or aborted transactions.

Pure: no clock, no I/O. The state is a function of the batches in the log, so recovery replays their headers.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, NamedTuple

from agl_stream.infra.embedded.log.batch import BatchHeader

WINDOW_BATCHES = 5
"""Kafka's window: a producer may have five requests in flight, so up to five batches may come again."""
_MAX_SEQUENCE = 0x7FFFFFFF


class Verdict(enum.Enum):
    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"
    OLD_EPOCH = "old epoch"


class Judgement(NamedTuple):
    verdict: Verdict
    base_offset: int = -1
    """Where the batch already is, for a duplicate."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


class KnownProducer(NamedTuple):
    """What a partition remembers of a producer, for administrators."""

    producer_id: int
    epoch: int
    last_sequence: int
    """-1 when the producer has not sent since its epoch was raised."""
    last_seen_ms: int
    first_open_offset: int | None


class _Producer:
    __slots__ = ("batches", "epoch", "first_open_offset", "last_seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=WINDOW_BATCHES)
        self.first_open_offset: int | None = None
        self.last_seen_ms = 0


class ProducerStates:
    """Producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []

    def judge(self, header: BatchHeader) -> Judgement:
        """Whether a batch continues its producer's sequence, repeats one of the last five, or breaks it.

        A producer that the partition does not know may start at any sequence: its state may have expired.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return Judgement(Verdict.ACCEPT)
        if header.producer_epoch < producer.epoch:
            return Judgement(Verdict.OLD_EPOCH)
        if header.producer_epoch > producer.epoch:
            return Judgement(Verdict.ACCEPT if header.base_sequence == 0 else Verdict.OUT_OF_ORDER)
        for first, last, base_offset in producer.batches:
            if first == header.base_sequence and last == header.last_sequence:
                return Judgement(Verdict.DUPLICATE, base_offset)
        if producer.batches:
            last = producer.batches[-1][1]
            expected = 0 if last == _MAX_SEQUENCE else last + 1
            if header.base_sequence != expected:
                return Judgement(Verdict.OUT_OF_ORDER)
        return Judgement(Verdict.ACCEPT)

    def record(self, header: BatchHeader, seen_ms: int) -> None:
        """Take a data batch that is in the log, and came at `seen_ms`, into account."""
        producer = self._producer(header, seen_ms)
        producer.batches.append((header.base_sequence, header.last_sequence, header.base_offset))
        if header.is_transactional and producer.first_open_offset is None:
            producer.first_open_offset = header.base_offset
            self._open[header.producer_id] = header.base_offset

    def record_marker(self, header: BatchHeader, commit: bool, seen_ms: int) -> None:
        """Take a transaction marker that is in the log, and came at `seen_ms`, into account."""
        producer = self._producer(header, seen_ms)
        first = self._open.pop(header.producer_id, None)
        producer.first_open_offset = None
        if first is not None and not commit:
            self.aborted.append(AbortedTransaction(header.producer_id, first, header.base_offset))

    def _producer(self, header: BatchHeader, seen_ms: int) -> _Producer:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        if seen_ms > producer.last_seen_ms:
            producer.last_seen_ms = seen_ms
        return producer

    def __len__(self) -> int:
        return len(self._producers)

    def known(self) -> list[KnownProducer]:
        """Every producer that is remembered."""
        return [
            KnownProducer(
                producer_id,
                producer.epoch,
                producer.batches[-1][1] if producer.batches else -1,
                producer.last_seen_ms,
                producer.first_open_offset,
            )
            for producer_id, producer in self._producers.items()
        ]

    @property
    def open_producers(self) -> list[int]:
        """Producers with a transaction that has neither been committed nor aborted here."""
        return list(self._open)

    def epoch(self, producer_id: int) -> int:
        producer = self._producers.get(producer_id)
        return 0 if producer is None else producer.epoch

    def first_open_offset(self, producer_id: int) -> int:
        """Where a producer's open transaction begins here."""
        return self._open[producer_id]

    def last_stable_offset(self, end_offset: int) -> int:
        """First offset of the oldest open transaction, else the end of the log."""
        return min(self._open.values()) if self._open else end_offset

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that have records in [first_offset, end_offset)."""
        return [
            aborted
            for aborted in self.aborted
            if aborted.last_offset >= first_offset and aborted.first_offset < end_offset
        ]

    def forget_before(self, start_offset: int, seen_ms: int) -> None:
        """Drop aborted transactions below the log's start, and producers whose last batch came before `seen_ms`."""
        self.aborted = [aborted for aborted in self.aborted if aborted.last_offset >= start_offset]
        for producer_id, producer in list(self._producers.items()):
            if producer.last_seen_ms < seen_ms and producer_id not in self._open:
                del self._producers[producer_id]

    def forget_aborted_below(self, offset: int) -> None:
        """Drop aborted transactions of which compaction has left nothing below `offset`."""
        self.aborted = [aborted for aborted in self.aborted if aborted.last_offset >= offset]

    def snapshot(self) -> dict[str, Any]:
        """JSON-able state, for restore()."""
        return {
            "producers": [
                [producer_id, p.epoch, p.first_open_offset, p.last_seen_ms, list(p.batches)]
                for producer_id, p in self._producers.items()
            ],
            "aborted": [list(aborted) for aborted in self.aborted],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> ProducerStates:
        states = cls()
        for producer_id, epoch, first_open_offset, last_seen_ms, batches in snapshot["producers"]:
            producer = states._producers[producer_id] = _Producer(epoch)
            producer.first_open_offset = first_open_offset
            producer.last_seen_ms = last_seen_ms
            producer.batches.extend((first, last, base) for first, last, base in batches)
            if first_open_offset is not None:
                states._open[producer_id] = first_open_offset
        states.aborted = [AbortedTransaction(*aborted) for aborted in snapshot["aborted"]]
        return states
