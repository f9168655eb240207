"""The runner as a member of the runners' group: take dispatched attempts and make them its own.

Claim = consume, report ``preparing``, commit, and only then run. The order is what makes it safe: a crash before
the commit leaves the dispatch to the next member of the group, a crash after it leaves a claimed attempt whose
worker falls silent. An attempt whose commit is refused belongs to somebody else and is not run here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
)

from agl_stream import connections
from agl_stream.consumers.record import Partition
from agl_stream.consumers.rejects import RejectLimits, Rejects
from agl_stream.consumers.runner.events import Claim, WorkerIdentity, attempt_event
from agl_stream.consumers.runner.memory import CancelledRollouts, DeliveryMemory
from agl_stream.consumers.runner.start import start_or_raise
from agl_stream.errors import AglStreamError, BufferFull, DecodeError, DeliveryFailed, EngineUnreachable
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.settings import Settings

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
# A member that has not polled for so long has a loop that is stuck; ``stay`` polls while all slots are taken.
MAX_POLL_INTERVAL_SECONDS = 300.0
_HANDOVER_SECONDS = 10.0
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _Source:
    """A raw record as the rejects want it: with the topic's name without namespace."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


class DispatchConsumer:
    """Belongs to one event loop. ``take`` is called by one task at a time."""

    def __init__(
        self,
        settings: Settings,
        producer: EventProducer,
        codec: Codec,
        worker: WorkerIdentity,
        cancelled: CancelledRollouts,
        *,
        static_member: bool,
        on_assignment: Callable[[], None] = lambda: None,
    ) -> None:
        """``static_member``: the worker's name is also the group's instance id, so that a restart within the session
        time moves no partition; the name must then be unique. ``on_assignment`` is called after each rebalance."""
        self._producer = producer
        self._codec = codec
        self._worker = worker
        self._cancelled = cancelled
        self._on_assignment = on_assignment
        self._seen = DeliveryMemory()
        limits = RejectLimits(consecutive=settings.reject_limit_consecutive)
        self._rejects = Rejects(producer, rejected_by="runner", limits=limits)
        self._unflushed_rejects = False
        self._rotation = 0
        self._paused = False
        self._closed = False
        self._claiming = asyncio.Lock()
        self._epoch = 0
        self._topic = settings.topic("dispatch")
        self._settings = settings
        session_ms = int(settings.session_timeout_seconds * 1000)
        self._consumer = AIOKafkaConsumer(
            **connections.aiokafka(settings),
            group_id=settings.group("runners"),
            group_instance_id=worker.worker_id if static_member else None,
            client_id=f"agl-{worker.worker_id}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=session_ms,
            # a member hears of a rebalance with its next heartbeat, and all others wait for it
            heartbeat_interval_ms=max(min(session_ms // 5, 1000), 100),
            # how long the group waits for this member to come back in a rebalance; our listener never needs more
            rebalance_timeout_ms=int((_HANDOVER_SECONDS + settings.session_timeout_seconds) * 1000),
            max_poll_interval_ms=int(MAX_POLL_INTERVAL_SECONDS * 1000),
            metadata_max_age_ms=10_000,
            retry_backoff_ms=100,
        )

    @property
    def partitions(self) -> list[int]:
        """Dispatch partitions assigned at the moment."""
        return sorted(tp.partition for tp in self._consumer.assignment())

    async def start(self) -> None:
        """Join the group. Raises EngineUnreachable when no broker answers within ``connect_timeout_seconds``."""
        await start_or_raise(self._consumer, self._settings)
        self._consumer.subscribe([self._topic], listener=_Listener(self._revoked, self._assigned))

    async def close_claims(self) -> None:
        """Let a claim in progress end; none is made after this."""
        async with self._claiming:
            self._closed = True

    async def stop(self) -> None:
        """Leave the group; a static member only falls silent, as its successor is expected within the session."""
        try:
            await self._consumer.stop()
        except KafkaError as error:
            logger.warning("leaving the group of runners failed (%s); the session time-out will do it", error)

    def finished(self, attempt_id: str) -> None:
        """The attempt has ended here; it is not taken again, whatever is offered."""
        self._seen.finish(attempt_id)

    async def take(self, free_slots: int) -> list[Claim]:
        """At most ``free_slots`` attempts that are claimed: reported as ``preparing`` and committed.

        Waits up to POLL_SECONDS for the first. While the broker is away it waits longer and loses nothing. Raises
        TooManyRejects, and AglStreamError for what retrying does not mend.
        """
        try:
            if self._paused:
                self._consumer.resume(*self._consumer.assignment())
                self._paused = False
            records = await self._poll(free_slots)
            if not records:
                return []
            async with self._claiming:
                return [] if self._closed else await self._claim(records)
        except KafkaError as error:
            if not error.retriable and not isinstance(error, KafkaConnectionError):
                raise AglStreamError(f"taking attempts from {self._topic} failed: {error}") from error
            logger.warning("taking attempts failed (%s); still trying", error)
            await asyncio.sleep(_RETRY_SECONDS)
            return []

    async def stay(self) -> None:
        """Keep the membership while no slot is free, by polling partitions that are paused: a member that does not
        poll for ``max_poll_interval_ms`` is dropped from its group."""
        self._consumer.pause(*self._consumer.assignment())
        self._paused = True
        await self._consumer.getmany(timeout_ms=0)

    async def _poll(self, free_slots: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there already, a fair share of each partition; else whatever comes first.

        Left alone, the client empties one partition's buffer before it looks at the next.
        """
        partitions = sorted(self._consumer.assignment())
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        if len(partitions) > 1:
            self._rotation += 1
            left, share = free_slots, -(-free_slots // len(partitions))
            for index in range(len(partitions)):
                partition = partitions[(index + self._rotation) % len(partitions)]
                if left and (records := await self._consumer.getmany(partition, max_records=min(share, left))):
                    found.update(records)
                    left -= sum(map(len, records.values()))
        return found or await self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=free_slots)

    async def _claim(self, records: dict[TopicPartition, list[ConsumerRecord]]) -> list[Claim]:
        epoch = self._epoch
        at_us = now_us()
        positions = {tp: batch[-1].offset + 1 for tp, batch in records.items()}
        try:
            claims = [
                Claim(event, record.partition, record.offset, at_us)
                for batch in records.values()
                for record in batch
                if (event := self._dispatched(record)) is not None
            ]
            await self._report_preparing(claims)
            await self._flush_rejects()
        except (DeliveryFailed, BufferFull, EngineUnreachable, TimeoutError) as error:
            logger.warning("claims could not be reported (%s); they are taken again", error)
            self._rewind(records)
            await asyncio.sleep(_RETRY_SECONDS)
            return []
        if epoch != self._epoch or not await self._commit(positions):
            logger.info("%d claims dropped: the group was rebalanced", len(claims))
            return []
        for claim in claims:
            self._seen.remember(claim.attempt_id, claim.delivery)
        return claims

    def _dispatched(self, record: ConsumerRecord) -> Event | None:
        """The attempt to claim, or None: undecodable (rejected), offered before, or cancelled meanwhile."""
        try:
            event_type, event = self._codec.decode(record.value, record.headers)
        except DecodeError as error:
            self._reject(record, error.reason_code, str(error))
            return None
        if event_type != "AttemptDispatched":
            self._reject(record, "wrong_event", f"{event_type} on the dispatch topic")
            return None
        self._rejects.accept(Partition("dispatch", record.partition))
        if self._seen.is_stale(event["attempt_id"], event["delivery"]) or event["rollout_id"] in self._cancelled:
            return None
        return event

    def _reject(self, record: ConsumerRecord, reason_code: str, detail: str) -> None:
        source = _Source("dispatch", record.partition, record.offset, record.key, record.value or b"")
        self._unflushed_rejects = True
        self._rejects.reject(source, reason_code, detail)

    async def _flush_rejects(self) -> None:
        if self._unflushed_rejects:
            await asyncio.to_thread(self._rejects.flush)
            self._unflushed_rejects = False

    async def _report_preparing(self, claims: list[Claim]) -> None:
        """All of them in one go; returns once all are acknowledged."""
        deliveries: list[Awaitable[Any]] = [
            self._producer.adeliver(
                "attempts",
                attempt_event(claim, self._worker, "preparing", claim.claimed_at_us),
                key=claim.rollout_id,
            )
            for claim in claims
        ]
        results = await asyncio.gather(*deliveries, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit(self, positions: dict[TopicPartition, int]) -> bool:
        """Whether the group took note of these positions. Tries as long as the broker is away."""
        while True:
            try:
                await self._consumer.commit(positions)
                return True
            except (CommitFailedError, IllegalStateError):
                return False
            except KafkaError as error:
                if not error.retriable and not isinstance(error, KafkaConnectionError):
                    raise
                logger.warning("the commit of claims failed (%s); still trying", error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _rewind(self, records: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        for tp, batch in records.items():
            try:
                self._consumer.seek(tp, batch[0].offset)
            except IllegalStateError:
                logger.debug("%s was revoked meanwhile: its new owner starts from the last commit", tp)

    async def _revoked(self, _: Any) -> None:
        """Let a claim in progress reach its commit, which the group still takes now; then let go."""
        try:
            async with asyncio.timeout(_HANDOVER_SECONDS), self._claiming:
                self._epoch += 1
        except TimeoutError:
            self._epoch += 1

    async def _assigned(self, _: Any) -> None:
        self._paused = False
        self._on_assignment()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, revoked: Callable[[Any], Awaitable[None]], assigned: Callable[[Any], Awaitable[None]]) -> None:
        self._on_revoked = revoked
        self._on_assigned = assigned

    # aiokafka awaits what these return; its own annotation says None
    async def on_partitions_revoked(self, revoked: Any) -> None:  # type: ignore[override]
        await self._on_revoked(revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:  # type: ignore[override]
        await self._on_assigned(assigned)
