"""The asyncio side of a lifecycle process: reading, committing, rebalances, and watching over Faust.

Faust reads and keeps the group membership. Its agent hands over everything that has arrived; a thread folds it and
makes it durable; then the offsets are committed here. What Faust loses around a rebalance is found by
:mod:`.positions` and read again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from faust.types import TP

from agl_stream.errors import AglStreamError, BufferFull, DeliveryFailed, EngineUnreachable
from agl_stream.schemas.topics import local_name
from agl_stream.settings import Settings
from agl_stream.streams.group_offsets import GroupOffsets, Place
from agl_stream.streams.lifecycle.batch import Incoming
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.positions import Positions
from agl_stream.streams.lifecycle.processor import LifecycleProcessor, Outdated
from agl_stream.streams.lifecycle.stall import StallGuard
from agl_stream.streams.lifecycle.table import StateTable
from agl_stream.streams.log_tail import LogTail

logger = logging.getLogger(__name__)

BATCH_LIMIT = 500
_BATCH_SECONDS = 0.02
"""Batches begin at least this far apart: what a batch costs is shared by more records, and a record that comes alone
is not kept waiting."""
_TRANSIENT = (EngineUnreachable, DeliveryFailed, BufferFull, TimeoutError)
_RETRIES = 3
_LONGEST_PAUSE_SECONDS = 4.0
_LOOK_SECONDS = 0.1
_SWEEP_SECONDS = 1.0
_COMMIT_SECONDS = 0.2
_STOP_SECONDS = 10.0
_DRAIN_SECONDS = 10.0

_T = TypeVar("_T")


class LifecycleWorker:
    """Wires Faust's application to the processor. One use: ``run``."""

    def __init__(
        self,
        settings: Settings,
        app: Any,
        inputs: Any,
        executor: ThreadPoolExecutor,
        processor: LifecycleProcessor,
        table: StateTable,
        offsets: GroupOffsets,
    ) -> None:
        self._settings = settings
        self._app = app
        self._executor = executor
        self._processor = processor
        self._table = table
        self._offsets = offsets
        self._guard = StallGuard(settings, settings.group("lifecycle"), offsets, self._owned)
        self._positions = Positions()
        self._stock_generation = -1
        self._stream: Any = None
        self._ahead: dict[Place, int] = {}
        self._uncommitted: dict[TP, int] = {}
        self._failure: BaseException | None = None
        self._stopping = False
        self._busy = asyncio.Lock()
        self._committing = asyncio.Lock()
        app.agent(inputs, name="lifecycle")(self._agent)
        app.on_partitions_revoked.connect(self._revoked)

    async def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Until ``stop`` is set; raises what ends it earlier."""
        self._app.loop = asyncio.get_running_loop()
        commits = asyncio.create_task(self._commit_for_ever())
        try:
            await self._app.start()
            told, next_sweep = False, 0.0
            while not stop.is_set():
                self._raise_failure()
                if self._is_flowing() and time.monotonic() > next_sweep:
                    await self._look_around()
                    next_sweep = time.monotonic() + _SWEEP_SECONDS
                if not told and self._stock_generation >= 0:
                    told = True
                    ready()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._stopping = True
            commits.cancel()
            await self._stop_app()
        self._raise_failure()

    # reading

    async def _agent(self, stream: Any) -> None:
        self._stream = stream = stream.noack()
        waiting = stream.channel.queue
        batch: list[Any] = []
        next_batch = 0.0
        async for event in stream.events():
            batch.append(event.message)
            # everything that has arrived by now is one batch: single records at rest, hundreds under load
            if len(batch) < BATCH_LIMIT and waiting.empty() and (wait := next_batch - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if len(batch) >= BATCH_LIMIT or waiting.empty():
                next_batch = time.monotonic() + _BATCH_SECONDS
                try:
                    await self._process(batch)
                except Exception as error:  # noqa: BLE001 - whatever it is, it ends the process with its message
                    # what was still being tried when the process was told to stop is no failure
                    if not (self._stopping and isinstance(error, _TRANSIENT)):
                        self._failure = error
                    # never returning keeps Faust from going on; run() ends the process
                    await asyncio.Event().wait()
                batch = []

    async def _process(self, messages: list[Any]) -> None:
        async with self._busy:
            generation = self._app.consumer_generation_id
            await self._take_stock(generation)
            pending = [message for message in messages if message.generation_id == generation]
            while pending:
                admitted, early = self._positions.admit(pending)
                if admitted and not await self._handle(admitted, generation):
                    return
                in_order = {place for place, offset in early.items() if await self._is_a_gap_of_the_log(place, offset)}
                pending = [message for message in pending if (message.topic, message.partition) in in_order]

    async def _handle(self, messages: list[Any], generation: int) -> bool:
        """Whether the messages were handled; not when their partitions were taken away meanwhile."""
        namespace = self._settings.namespace
        records = [
            Incoming(
                Source(
                    local_name(namespace, message.topic),
                    message.partition,
                    message.offset,
                    int(message.timestamp * 1000),
                    message.key,
                    message.value,
                ),
                message.headers.items() if isinstance(message.headers, dict) else message.headers,
            )
            for message in messages
        ]
        try:
            await self._persistently(
                lambda: self._processor.handle(records, lambda: self._app.consumer_generation_id == generation)
            )
        except Outdated:
            return False
        for message in messages:
            self._uncommitted[message.tp] = message.offset + 1
        return True

    async def _persistently(self, work: Callable[[], _T]) -> _T:
        """Until it succeeds or the process stops. What the producer could not deliver is given up after some tries,
        for that one a new process may mend; an engine that is away is waited for."""
        tries = refused = 0
        while True:
            try:
                return await self._in_thread(work)
            except _TRANSIENT as error:
                refused += not isinstance(error, EngineUnreachable)
                if refused > _RETRIES or self._stopping:
                    raise
                logger.warning("the lifecycle waits for an engine: %s", error)
                await asyncio.sleep(min(0.5 * 2**tries, _LONGEST_PAUSE_SECONDS))
                tries += 1

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # what is ours

    async def _take_stock(self, generation: int) -> None:
        """Once per generation of the group: the table of the partitions that are ours now, and where each begins."""
        if generation == self._stock_generation:
            return
        places = self._owned()

        def work() -> dict[Place, int]:
            self._table.catch_up({partition for _, partition in places})
            self._processor.recovered()
            return {place: start for place, (start, _) in self._offsets.ask(places).items()}

        self._positions.start(await self._persistently(work))
        self._stock_generation = generation
        self._ahead.clear()

    async def _revoked(self, app: Any, revoked: Any, **_: Any) -> None:
        """Let the batch at hand finish and commit it, so that the next owner begins where we ended."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS), self._busy:
                await self._commit()
        except TimeoutError:
            logger.warning("partitions were taken away while a batch was being written; it will be read again")

    async def _is_a_gap_of_the_log(self, place: Place, early: int) -> bool:
        """Whether nothing stands between the expected offset and ``early``. If something does, the consumer is sent
        back to it."""
        topic, partition = place
        expected = self._positions.expected[place]

        def look() -> int | None:
            tail = LogTail(self._settings, topic, name="lifecycle-gaps")
            try:
                return tail.first_from(partition, expected)
            finally:
                tail.close()

        first = await self._persistently(look)
        if first is None or first >= early:
            self._positions.skip_to(place, early)
            return True
        self._positions.skip_to(place, first)
        await self._rewind({place: first})
        return False

    async def _rewind(self, places: dict[Place, int]) -> None:
        for (topic, partition), offset in places.items():
            logger.info("%s partition %d is read again from offset %d", topic, partition, offset)
            self._positions.rewinding((topic, partition))
        await self._app.consumer.seek_wait({TP(*place): offset for place, offset in places.items()})

    async def _find_what_never_came(self) -> None:
        """Rewind partitions that the consumer has read further than what has reached us, twice in a row with
        nothing under way."""
        if not self._stream.channel.queue.empty():
            self._ahead.clear()
            return
        consumer, expected = self._app.consumer, self._positions.expected
        ahead = {
            place: offset for place, offset in expected.items() if (await consumer.position(TP(*place)) or 0) > offset
        }
        lost = {place: offset for place, offset in ahead.items() if self._ahead.get(place) == offset}
        if lost:
            await self._rewind(lost)
        self._ahead = {place: offset for place, offset in ahead.items() if place not in lost}

    # committing

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            await self._commit()

    async def _commit(self) -> None:
        async with self._committing:
            offsets, self._uncommitted = self._uncommitted, {}
            if offsets:
                # The public commit() only knows acknowledged events; this is the call it makes underneath. It leaves
                # out partitions that are no longer ours, and crashes the application on an error that is no rebalance.
                await self._app.consumer._commit(offsets)

    # watching

    async def _look_around(self) -> None:
        try:
            async with self._busy:
                if not self._is_flowing():
                    return
                await self._take_stock(self._app.consumer_generation_id)
                await self._find_what_never_came()
                await self._in_thread(self._processor.sweep)
            await asyncio.get_running_loop().run_in_executor(None, self._guard.look)
        except _TRANSIENT as error:
            logger.warning("the lifecycle waits for an engine: %s", error)

    def _is_flowing(self) -> bool:
        """Whether Faust has finished its last rebalance and reads."""
        return bool(
            self._stream is not None and not self._app.rebalancing and self._app.tables.recovery.completed.is_set()
        )

    def _owned(self) -> list[Place]:
        consumer = self._app.consumer
        return [] if consumer is None else [(tp.topic, tp.partition) for tp in consumer.assignment()]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._app.crashed:
            reason = self._app.crash_reason
            raise AglStreamError(f"the stream processor crashed: {reason!r}") from reason

    async def _stop_app(self) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if self._failure is None and not self._app.crashed:
                    async with self._busy:
                        await self._commit()
                await self._app.stop()
        except TimeoutError:
            logger.warning("the stream processor did not stop within %g s and is left behind", _STOP_SECONDS)
