"""The batch consumer loop: poll, decode, handle, durable, commit. Shared by the sink, the joiner and any other reader.

What it promises:

- An offset is committed only after everything before it was handled durably (the contiguous watermark), and never
  past a handler's own floor. A crash at any point leads to records coming again, never to records skipped.
- A rebalance stops intake, gives the work at hand ``drain_seconds`` to finish, commits and yields; what did not
  finish is redone by the next owner. Lost partitions are never committed.
- A slow handler pauses the partitions while polling goes on, so that it is not thrown out of its group, and
  nothing more is fetched into memory.
- A record that cannot be decoded becomes a reject and the loop goes on, until the limits of ``Rejects``.
- A broker that is away is waited for, with a line in the log now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from agl_stream.consumers.client import SOMEBODY_ELSE_WILL, consumer_config
from agl_stream.consumers.decoding import Decoder, Message
from agl_stream.consumers.handler import BatchHandler
from agl_stream.consumers.offsets import Claim, OffsetTracker
from agl_stream.consumers.record import Partition, Record
from agl_stream.consumers.rejects import Rejects
from agl_stream.errors import AglStreamError, BufferFull, DeliveryFailed, EngineUnreachable
from agl_stream.producers.client_logging import client_logger
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings

__all__ = ["BatchHandler", "BatchLoop", "Partition", "Record"]

_T = TypeVar("_T")
_TRANSIENT = (EngineUnreachable, DeliveryFailed, BufferFull, TimeoutError)
_SLOW_SECONDS = 1.0
_RETRY_SECONDS = (0.2, 5.0)
_ASK_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outcome:
    """What a call on the handler's thread led to."""

    positions: dict[Partition, int] = field(default_factory=dict)
    unfinished: Future[None] | None = None
    floors: dict[Partition, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _InFlight:
    call: Future[_Outcome]
    claims: list[Claim] | None = None
    unfinished: Future[None] | None = None
    void: bool = False

    def awaited(self) -> Future[Any]:
        return self.call if self.unfinished is None else self.unfinished


class BatchLoop:
    """One member of a consumer group, feeding one handler."""

    def __init__(
        self,
        settings: Settings,
        *,
        group: str,
        topics: Sequence[str],
        handler: BatchHandler,
        codec: Codec,
        rejects: Rejects,
        max_records: int = 2000,
        poll_seconds: float = 0.1,
        commit_interval_seconds: float = 0.25,
        drain_seconds: float = 10.0,
        max_in_flight: int = 1,
        partition_eof: bool = False,
    ) -> None:
        """``group`` and ``topics`` without namespace. ``max_in_flight``: batches a handler that returns futures may
        have open at once."""
        self._settings = settings
        self._group = group
        self._handler = handler
        self._rejects = rejects
        self._max_records = max_records
        self._poll_seconds = poll_seconds
        self._commit_interval = commit_interval_seconds
        self._drain_seconds = drain_seconds
        self._max_in_flight = max_in_flight
        self._partition_eof = partition_eof
        self._decoder = Decoder(settings, topics, codec, rejects)
        self._local = {settings.topic(name): name for name in topics}
        self._log = client_logger(group)
        self._tracker = OffsetTracker()
        self._floors: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._assigned: set[Partition] = set()
        self._in_flight: deque[_InFlight] = deque()
        self._held_back: list[Message] = []
        self._paused = False
        self._last_commit = 0.0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._ready: Callable[[], None] | None = None
        self._consumer: Consumer
        self._asker: Consumer
        self._worker: ThreadPoolExecutor

    def run(self, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
        """Consume until ``stop`` is set; blocks. ``ready`` is called once, with the first assignment.

        Raises TooManyRejects, and whatever the handler raises beyond what is tried again. What was finished is
        committed in any case. May be called once.
        """
        self._stop, self._ready = stop, ready
        config = consumer_config(self._settings, group=self._group, logger=self._log, partition_eof=self._partition_eof)
        self._consumer = Consumer({**config, "on_commit": self._on_commit}, logger=self._log)
        # The client lets one thread at a time into a consumer, and a rebalance callback counts as inside: what the
        # handler's thread asks during an assignment would wait for the callback that waits for it.
        self._asker = Consumer(config, logger=self._log)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"agl-{self._group}")
        try:
            self._consumer.subscribe(
                list(self._local), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not stop.is_set():
                self._commit_when_due()
                if self._make_room():
                    self._take()
                if self._failure is not None:
                    raise self._failure
        finally:
            try:
                # hands the partitions back: drains and commits in _on_revoke
                self._consumer.close()
            finally:
                self._worker.shutdown(wait=True, cancel_futures=True)
                self._asker.close()
        if self._failure is not None:
            raise self._failure

    # intake

    def _make_room(self) -> bool:
        """Whether another batch may be taken. Waits a while for one to finish; when the handler is slower than
        that, pauses the partitions and keeps the membership alive."""
        self._settle()
        if len(self._in_flight) >= self._max_in_flight:
            wait([entry.awaited() for entry in self._in_flight], _SLOW_SECONDS, FIRST_COMPLETED)
            self._settle()
        if len(self._in_flight) >= self._max_in_flight:
            self._pause()
            message = self._consumer.poll(0)
            if message is not None:
                self._held_back.append(message)
            return False
        self._resume()
        return True

    def _take(self) -> None:
        messages = self._held_back
        self._held_back = []
        first = self._consumer.poll(0 if messages else self._poll_seconds)
        if first is not None:
            messages.append(first)
            messages += self._consumer.consume(self._max_records - 1, 0)
        records: list[Message] = []
        ends: list[tuple[Partition, int]] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.append((self._partition_of_message(message), message.offset()))
            elif error.fatal():
                raise AglStreamError(f"the consumer of group {self._group} cannot go on: {error.str()}")
            else:
                self._log.warning("%s (%s); going on", error.str(), error.name())
        if self._failure is None and (records or ends):
            self._submit(self._process, records, ends)
        elif self._failure is None and not self._in_flight:
            self._submit(self._idle)

    def _submit(self, call: Callable[..., _Outcome], *args: Any) -> None:
        self._in_flight.append(_InFlight(self._worker.submit(call, *args)))

    def _pause(self) -> None:
        if not self._paused and self._assigned:
            self._consumer.pause(self._wire_partitions(self._assigned))
            self._paused = True

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._wire_partitions(self._assigned))
            self._paused = False

    # on the handler's thread

    def _process(self, messages: list[Message], ends: list[tuple[Partition, int]]) -> _Outcome:
        records, positions = self._decoder.decode(messages, self._persistently)
        self._persistently(self._rejects.flush)
        unfinished = self._persistently(self._handler.handle, records) if records else None
        if ends:
            self._persistently(self._handler.reached_end, ends)
        return _Outcome(positions, unfinished, dict(self._handler.commit_floors()))

    def _idle(self) -> _Outcome:
        self._persistently(self._handler.idle)
        return _Outcome(floors=dict(self._handler.commit_floors()))

    def _persistently(self, call: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call until it does not fail for want of an engine; gives up when the loop is stopped."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                return call(*args, **kwargs)
            except _TRANSIENT as error:
                if self._stop.is_set():
                    raise
                logger.warning("%s: %s; trying again in %.1f s", self._group, error, pause)
                self._stop.wait(pause)
                pause = min(pause * 2, longest)

    # finishing and committing

    def _settle(self) -> None:
        """Take note of what has finished, in the order it was started."""
        for entry in list(self._in_flight):
            if entry.claims is None:
                if not entry.call.done():
                    break
                try:
                    outcome = entry.call.result()
                except BaseException as error:  # noqa: BLE001 - raised by run
                    self._fail(entry, error)
                    break
                entry.unfinished = outcome.unfinished
                entry.claims = []
                if not entry.void:
                    entry.claims = [self._tracker.take(p, offset) for p, offset in outcome.positions.items()]
                    self._floors = outcome.floors
            if entry.unfinished is not None:
                if not entry.unfinished.done():
                    continue
                try:
                    entry.unfinished.result()
                except BaseException as error:  # noqa: BLE001 - raised by run
                    self._fail(entry, error)
                    break
            self._tracker.finish(entry.claims)
            self._in_flight.remove(entry)

    def _fail(self, entry: _InFlight, error: BaseException) -> None:
        self._in_flight.remove(entry)
        self._note_failure(error)

    def _note_failure(self, error: BaseException) -> None:
        """What ``run`` is to raise; a thing that was still being tried when the loop was stopped is no failure."""
        if not (self._stop.is_set() and isinstance(error, _TRANSIENT)):
            self._failure = self._failure or error

    def _committable(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for partition, watermark in self._tracker.watermarks().items():
            offset = min(watermark, self._floors.get(partition, watermark))
            if offset != self._committed.get(partition) and partition in self._assigned:
                found[partition] = offset
        return found

    def _commit_when_due(self) -> None:
        now = time.monotonic()
        if now - self._last_commit < self._commit_interval:
            return
        self._last_commit = now
        offsets = self._committable()
        if offsets:
            try:
                self._consumer.commit(offsets=self._wire_partitions(offsets, offsets), asynchronous=True)
            except KafkaException as error:
                self._commit_failed(error.args[0])

    def _commit_now(self, partitions: set[Partition]) -> None:
        offsets = {p: offset for p, offset in self._committable().items() if p in partitions}
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=self._wire_partitions(offsets, offsets), asynchronous=False)
        except KafkaException as error:
            self._commit_failed(error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None:
            self._commit_failed(error)
            return
        for answer in partitions:
            if answer.error is not None:
                self._commit_failed(answer.error)
            else:
                self._committed[self._partition_of(answer)] = answer.offset

    def _commit_failed(self, error: KafkaError) -> None:
        if error.code() in SOMEBODY_ELSE_WILL:
            self._log.warning(
                "group %s: commit refused (%s); the partitions' next owner starts from the last commit",
                self._group,
                error.name(),
            )
        else:
            self._log.warning("group %s: commit failed (%s); trying again", self._group, error.str())

    # rebalances

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        try:
            partitions = [self._partition_of(p) for p in assigned]
            call = self._worker.submit(self._persistently, self._handler.assigned, partitions)
            while not wait([call], 0.2).done:
                # the handler is still at work that outlasted a revocation; a stop need not wait for it
                if self._stop.is_set():
                    return
            starts = call.result()
            for wire, partition in zip(assigned, partitions, strict=True):
                wire.offset = starts.get(partition, OFFSET_INVALID)
            consumer.assign(assigned)
            # The client remembers over a rebalance what was paused in it: a partition that was lost while the handler
            # was slow would come back silent.
            consumer.resume(assigned)
            self._assigned = set(partitions)
            self._paused = False
            if self._ready is not None:
                ready, self._ready = self._ready, None
                ready()
        except BaseException as error:  # noqa: BLE001 - must not cross the client's callback; raised by run
            self._note_failure(error)

    def _on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        self._yield(revoked, lost=False)

    def _on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        self._yield(lost, lost=True)

    def _yield(self, wire: list[TopicPartition], *, lost: bool) -> None:
        try:
            partitions = {self._partition_of(p) for p in wire}
            deadline = time.monotonic() + self._drain_seconds
            self._held_back.clear()
            if lost:
                self._log.warning("group %s lost its partitions; their next owner redoes the rest", self._group)
            else:
                if not self._drain(deadline):
                    self._log.warning(
                        "group %s: work at hand took over %.0f s; partitions are handed over without it",
                        self._group,
                        self._drain_seconds,
                    )
                self._commit_now(partitions)
            for entry in self._in_flight:
                entry.void = True
            self._assigned -= partitions
            self._tracker.drop(partitions)
            for partition in partitions:
                self._committed.pop(partition, None)
                self._floors.pop(partition, None)
            told = self._worker.submit(self._revoked, sorted(partitions), lost)
            wait([told], max(deadline - time.monotonic(), 0.1))
        except BaseException as error:  # noqa: BLE001 - must not cross the client's callback; raised by run
            self._note_failure(error)

    def _revoked(self, partitions: list[Partition], lost: bool) -> None:
        self._rejects.drop(partitions)
        self._persistently(self._handler.revoked, partitions, lost=lost)

    def _drain(self, deadline: float) -> bool:
        """Let the work at hand finish; False when the deadline passes first."""
        self._settle()
        while self._in_flight:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            wait([entry.awaited() for entry in self._in_flight], remaining, FIRST_COMPLETED)
            self._settle()
        return True

    # names

    def _partition_of(self, wire: TopicPartition) -> Partition:
        return Partition(self._local[wire.topic], wire.partition)

    def _partition_of_message(self, message: Message) -> Partition:
        return Partition(self._local[message.topic()], message.partition())

    def _wire_partitions(
        self, partitions: Iterable[Partition], offsets: dict[Partition, int] | None = None
    ) -> list[TopicPartition]:
        return [
            TopicPartition(self._settings.topic(p.topic), p.number, OFFSET_INVALID if offsets is None else offsets[p])
            for p in partitions
        ]
