"""What a runner reads besides its dispatches: controls, rollout states and resources, all partitions, no group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from agl_stream import connections
from agl_stream.consumers.runner.start import start_or_raise
from agl_stream.errors import DecodeError, EngineUnreachable
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.schemas.registry import Registry
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_RETRY_SECONDS = 1.0
# Of a state only what decides whether an attempt goes on; inputs can be large.
_PROJECTIONS = {"RolloutStateChanged": ["rollout_id", "status", "attempts"]}


class LogFollower:
    """Belongs to one event loop. ``run`` is a task for the life of the runner.

    Resources are read from the beginning, controls from as far back as a dispatch may wait in the log, states from
    now on: a state matters only to an attempt that runs here. A record that cannot be decoded is passed over; the
    lifecycle and the state store reject it.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        on_control: Callable[[Event], None],
        on_resources: Callable[[Event], None],
        on_state: Callable[[Event], None],
        is_held: Callable[[str], bool],
    ) -> None:
        """``is_held``: whether an attempt of this rollout runs here; only then its states are decoded."""
        self._settings = settings
        self._codec = Codec(registry, projections=_PROJECTIONS)
        self._is_held = is_held
        self._controls = settings.topic("controls")
        self._states = settings.topic("rollouts")
        self._resources = settings.topic("resources")
        self._handlers: dict[str, tuple[str, Callable[[Event], None]]] = {
            self._controls: ("ControlRequested", on_control),
            self._states: ("RolloutStateChanged", on_state),
            self._resources: ("ResourcesPublished", on_resources),
        }
        self._consumer = AIOKafkaConsumer(
            self._controls,
            self._states,
            self._resources,
            **connections.aiokafka(settings),
            client_id="agl-runner-follower",
            enable_auto_commit=False,
            auto_offset_reset="latest",
            metadata_max_age_ms=10_000,
            retry_backoff_ms=100,
        )
        self._behind: dict[TopicPartition, int] = {}
        self._caught_up = asyncio.Event()

    async def start(self) -> None:
        """Connect and find the starting offsets. Raises EngineUnreachable."""
        await start_or_raise(self._consumer, self._settings)
        controls, resources = self._partitions(self._controls), self._partitions(self._resources)
        since_ms = time.time_ns() // 1_000_000 - TOPICS["dispatch"].retention_ms
        ends = await self._consumer.end_offsets([*controls, *resources])
        starts = await self._consumer.beginning_offsets(resources)
        found = await self._consumer.offsets_for_times({tp: since_ms for tp in controls}) if controls else {}
        starts.update({tp: at.offset if at is not None else ends[tp] for tp, at in found.items()})
        for tp, offset in starts.items():
            self._consumer.seek(tp, offset)
        self._behind = {tp: end for tp, end in ends.items() if starts[tp] < end}
        if not self._behind:
            self._caught_up.set()

    async def caught_up(self) -> None:
        """Return once everything that was on the log at the start has been taken in."""
        await self._caught_up.wait()

    async def run(self) -> None:
        """Follow until cancelled. A broker that is away is waited for."""
        while True:
            try:
                batches = await self._consumer.getmany(timeout_ms=int(_POLL_SECONDS * 1000))
            except KafkaError as error:
                logger.warning("following %s failed (%s); still trying", self._settings.namespace, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for tp, records in batches.items():
                if not self._take_in_all(tp, records):
                    await asyncio.sleep(_RETRY_SECONDS)
            if self._behind:
                await self._check_progress()

    async def stop(self) -> None:
        await self._consumer.stop()

    def _take_in_all(self, tp: TopicPartition, records: list[ConsumerRecord]) -> bool:
        """False when the registry is needed and away: the partition then continues from the record that needs it."""
        for record in records:
            try:
                self._take_in(tp.topic, record)
            except EngineUnreachable as error:
                logger.warning("%s[%d]@%d waits: %s", tp.topic, tp.partition, record.offset, error)
                self._consumer.seek(tp, record.offset)
                return False
        return True

    def _take_in(self, topic: str, record: ConsumerRecord) -> None:
        if topic == self._states and (record.key is None or not self._is_held(record.key.decode(errors="replace"))):
            return
        wanted, handle = self._handlers[topic]
        try:
            event_type, event = self._codec.decode(record.value, record.headers)
        except DecodeError as error:
            logger.debug("%s[%d]@%d passed over: %s", topic, record.partition, record.offset, error)
            return
        if event_type == wanted:
            handle(event)

    async def _check_progress(self) -> None:
        for tp, end in list(self._behind.items()):
            if await self._consumer.position(tp) >= end:
                del self._behind[tp]
        if not self._behind:
            self._caught_up.set()

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self._consumer.partitions_for_topic(topic) or ()]
