"""Runs the lifecycle on Faust: reads batches, has them made durable, commits.

What it promises: every input record is folded at least once, in the order of its partition, and its offset is
committed only after the states and events that follow from it are acknowledged by the log. A process that dies, or
loses partitions, leaves nothing behind but records that are read again. It never waits in silence: an engine that
stays away, a crash inside Faust and a standstill with work waiting all end ``run_lifecycle`` with an error, for a
supervisor to start it anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from faust.types import TP

from agl_stream.errors import AglStreamError, BufferFull, DeliveryFailed, EngineUnreachable
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import local_name
from agl_stream.settings import Settings
from agl_stream.streams.dispatch import RoundRobin
from agl_stream.streams.instance import stable_name
from agl_stream.streams.lifecycle.batch import Incoming
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.ended import EndedRollouts
from agl_stream.streams.lifecycle.faust_app import build_app, changelog_topic, prepare_topics
from agl_stream.streams.lifecycle.processor import LifecycleProcessor
from agl_stream.streams.lifecycle.resource_reader import ResourceReader
from agl_stream.streams.lifecycle.stall import StallGuard
from agl_stream.streams.lifecycle.table import table_of
from agl_stream.streams.store import open_store

logger = logging.getLogger(__name__)

BATCH_LIMIT = 500
_TRANSIENT = (EngineUnreachable, DeliveryFailed, BufferFull, TimeoutError)
_RETRIES = 3
_LOOK_SECONDS = 0.1
_SWEEP_SECONDS = 1.0
_STOP_SECONDS = 10.0
_DRAIN_SECONDS = 10.0


def run_lifecycle(settings: Settings, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
    """Run until ``stop`` is set; ``ready`` is called once the table is there and records are being read.

    Blocks. Raises EngineUnreachable when broker, registry or topics are missing at the start, and whatever ended it
    before it was stopped.
    """
    with ExitStack() as stack:
        partitions = prepare_topics(settings)
        folder = settings.folder / "lifecycle"
        instance = settings.lifecycle_instance or stack.enter_context(stable_name("lifecycle", folder))
        app, inputs, table = build_app(settings, instance=instance, partitions=partitions, folder=folder)
        codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace))
        producer = EventProducer(settings, name="lifecycle", codec=codec, linger_ms=1.0)
        stack.callback(producer.close)
        resources = ResourceReader(settings, codec)
        stack.callback(resources.close)
        store = open_store(settings, read_only=True)
        stack.callback(store.close)
        executor = ThreadPoolExecutor(1, thread_name_prefix="lifecycle-fold")
        stack.callback(executor.shutdown, wait=True)
        # made late: a table's store exists once the application has been finalised
        make_processor = lambda: LifecycleProcessor(  # noqa: E731 - a closure over a dozen names
            settings,
            table=table_of(app, table),
            changelog_topic=changelog_topic(settings),
            partitions=partitions,
            producer=producer,
            codec=codec,
            dispatcher=RoundRobin(partitions, start=time.time_ns() % partitions),
            ended=EndedRollouts(store),
            resources=resources,
        )
        worker = _Worker(settings, app, inputs, table, executor, make_processor)
        asyncio.run(worker.run(stop, ready or (lambda: None)))


class _Worker:
    """The asyncio side: the agent, commits, sweeps, and watching over Faust."""

    def __init__(
        self,
        settings: Settings,
        app: Any,
        inputs: Any,
        table: Any,
        executor: ThreadPoolExecutor,
        make_processor: Callable[[], LifecycleProcessor],
    ) -> None:
        self._settings = settings
        self._app = app
        self._executor = executor
        self._make_processor = make_processor
        self._failure: BaseException | None = None
        self._busy = asyncio.Lock()
        self._committing = asyncio.Lock()
        self._uncommitted: dict[TP, int] = {}
        app.agent(inputs, name="lifecycle")(self._agent)
        app.on_partitions_revoked.connect(self._revoked)
        app.on_rebalance_complete.connect(self._recovered)

    async def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        app, loop = self._app, asyncio.get_running_loop()
        app.loop = loop
        app.finalize()
        self._processor = self._make_processor()
        guard = StallGuard(self._settings, self._settings.group("lifecycle"), self._owned)
        commits = asyncio.create_task(self._commit_for_ever())
        try:
            await app.start()
            told, next_sweep = False, time.monotonic() + _SWEEP_SECONDS
            while not stop.is_set():
                self._raise_failure()
                if not told and self._is_ready():
                    told = True
                    ready()
                if time.monotonic() > next_sweep:
                    await self._sweep()
                    await loop.run_in_executor(None, guard.look)
                    next_sweep = time.monotonic() + _SWEEP_SECONDS
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            commits.cancel()
            await self._stop_app()
        self._raise_failure()

    # reading

    async def _agent(self, stream: Any) -> None:
        stream = stream.noack()
        batch: list[Any] = []
        waiting = stream.channel.queue
        async for event in stream.events():
            batch.append(event.message)
            # everything that has arrived by now is one batch: single records at rest, hundreds under load
            if len(batch) >= BATCH_LIMIT or waiting.empty():
                await self._process(batch)
                batch = []

    async def _process(self, messages: list[Any]) -> None:
        generation = self._app.consumer_generation_id
        messages = [message for message in messages if message.generation_id == generation]
        if not messages:
            return
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
        async with self._busy:
            try:
                await self._persistently(lambda: self._processor.handle(records))
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the process with its message
                self._failure = error
            if self._failure is not None and not isinstance(self._failure, AglStreamError):
                logger.error("the lifecycle failed on a batch", exc_info=self._failure)
            if self._failure is None:
                for message in messages:
                    self._uncommitted[message.tp] = message.offset + 1
        if self._failure is not None:
            # Never returning keeps Faust from going on; run() ends the process.
            await asyncio.Event().wait()

    async def _persistently(self, work: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        for tries in range(_RETRIES + 1):
            try:
                await loop.run_in_executor(self._executor, work)
                return
            except _TRANSIENT as error:
                if tries == _RETRIES:
                    raise
                logger.warning("a batch waits for an engine: %s", error)
                await asyncio.sleep(0.5 * 2**tries)

    # committing

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.01 if self._uncommitted else 0.05)
            await self._commit()

    async def _commit(self) -> None:
        async with self._committing:
            offsets, self._uncommitted = self._uncommitted, {}
            if not offsets:
                return
            # The public commit() only knows acknowledged events; this is the call it makes underneath. It leaves out
            # partitions that are no longer ours, and crashes the application on an error that is no rebalance.
            await self._app.consumer._commit(offsets)

    # rebalances

    async def _revoked(self, app: Any, revoked: Any, **_: Any) -> None:
        """Let the batch at hand finish and commit it, so that the next owner begins where we ended."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                async with self._busy:
                    await self._commit()
        except TimeoutError:
            logger.warning("partitions were taken away while a batch was being written; it will be read again")

    async def _recovered(self, app: Any, **_: Any) -> None:
        asyncio.get_running_loop().create_task(self._take_stock())

    async def _take_stock(self) -> None:
        async with self._busy:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._processor.recovered)

    # watching

    async def _sweep(self) -> None:
        if self._app.rebalancing or not self._app.tables.recovery.completed.is_set():
            return
        try:
            async with self._busy:
                await self._persistently(self._processor.sweep)
        except _TRANSIENT as error:
            logger.warning("closed rollouts stay in the table for now: %s", error)

    def _is_ready(self) -> bool:
        app = self._app
        return bool(app.tables.recovery.completed.is_set() and not app.rebalancing and app.consumer.assignment())

    def _owned(self) -> list[tuple[str, int]]:
        if self._app.consumer is None or self._app.rebalancing:
            return []
        changelog = changelog_topic(self._settings)
        return [(tp.topic, tp.partition) for tp in self._app.consumer.assignment() if tp.topic != changelog]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._app.crashed:
            reason = self._app.crash_reason
            raise AglStreamError(f"the stream processor crashed: {reason!r}") from reason
        if self._app.should_stop and not self._app.started:
            raise AglStreamError("the stream processor stopped on its own")

    async def _stop_app(self) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if self._failure is None and not self._app.crashed:
                    async with self._busy:
                        await self._commit()
                await self._app.stop()
        except TimeoutError:
            logger.warning("the stream processor did not stop within %g s and is left behind", _STOP_SECONDS)
