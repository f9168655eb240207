"""The runner: a member of the runners' group that runs an agent on N rollouts at once."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from agl_stream import connections
from agl_stream.agents import LitAgent
from agl_stream.consumers.runner.agent_host import AgentHost
from agl_stream.consumers.runner.attempt import HeldAttempt, Surroundings
from agl_stream.consumers.runner.dispatch_consumer import DispatchConsumer
from agl_stream.consumers.runner.events import Claim, WorkerIdentity, heartbeat_event
from agl_stream.consumers.runner.heartbeat import Heartbeat, process_stats
from agl_stream.consumers.runner.identity import worker_identity
from agl_stream.consumers.runner.log_follower import LogFollower
from agl_stream.consumers.runner.memory import CancelledRollouts
from agl_stream.consumers.runner.resources_view import ResourcesView
from agl_stream.consumers.runner.stops import CANCELLED, RUNNER_STOPPING, stop_for_state
from agl_stream.errors import AglStreamError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.schemas.registry import Registry
from agl_stream.settings import Settings
from agl_stream.types import NamedResources, ProxyLLM

logger = logging.getLogger(__name__)

# An attempt's end waits for two acknowledgements, so a short linger is worth smaller batches.
_LINGER_MS = 2.0
_STAY_SECONDS = 1.0
_LEAVE_SECONDS = 10.0
_READ_OR_WRITTEN = ("AttemptDispatched", "AttemptStatusChanged", "SpanRecorded", "WorkerHeartbeat", "ControlRequested")


class Runner:
    """Runs ``agent`` until told to stop. ``run`` may be called once; everything else is for its event loop."""

    def __init__(
        self,
        settings: Settings,
        agent: LitAgent,
        *,
        name: str | None = None,
        registry: Registry | None = None,
        on_ready: Callable[[WorkerIdentity], None] = lambda worker: None,
    ) -> None:
        """``name``: a name of this worker that is unique and stays the same over restarts; it makes the group
        membership static. ``on_ready`` is called when the group has been joined."""
        self._settings = settings
        self._agent = agent
        self._name = name
        self._registry = registry or connections.registry_client(settings)
        self._on_ready = on_ready
        self._host = AgentHost()
        self._resources = ResourcesView(_gateway_resources(settings))
        self._cancelled = CancelledRollouts()
        self._held: dict[str, HeldAttempt] = {}
        self._held_rollouts: Counter[str] = Counter()
        self._holds: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._joined = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._status = "idle"
        self._started_at = time.monotonic()
        self._finished_attempts = 0

    def request_stop(self) -> None:
        """Once: take no more attempts and let those running finish, at most ``drain_seconds``. Twice: at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Run until ``request_stop``. Raises EngineUnreachable when broker or registry are not there at the start,
        and AglStreamError for what trying again does not mend; running attempts are drained first."""
        with worker_identity(self._name, self._settings.folder) as worker:
            codec = Codec(self._registry)
            # asked here once, so that no loop ever waits for the registry
            await asyncio.to_thread(lambda: [codec.encoder(event_type) for event_type in _READ_OR_WRITTEN])
            producer = EventProducer(self._settings, name="runner", codec=codec, linger_ms=_LINGER_MS)
            try:
                await self._serve(worker, producer, codec)
            finally:
                self._host.close()
                await _bounded(asyncio.to_thread(producer.close), _LEAVE_SECONDS, "closing the producer")

    async def _serve(self, worker: WorkerIdentity, producer: EventProducer, codec: Codec) -> None:
        follower = LogFollower(
            self._settings,
            self._registry,
            on_control=self._on_control,
            on_resources=self._resources.apply,
            on_state=functools.partial(self._on_state, worker),
            is_held=self._held_rollouts.__contains__,
        )
        dispatch = DispatchConsumer(
            self._settings,
            producer,
            codec,
            worker,
            self._cancelled,
            static_member=self._name is not None,
            on_assignment=self._joined.set,
        )
        shared = Surroundings(self._settings, self._agent, producer, worker, self._host, self._resources)
        snapshot = functools.partial(self._snapshot, worker, dispatch)
        heartbeat = Heartbeat(producer, snapshot, self._settings.heartbeat_seconds)
        following = asyncio.create_task(self._follow(follower))
        claiming = asyncio.create_task(self._claim(follower, dispatch, shared, heartbeat))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({following, claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._status = "stopping"
            await _bounded(dispatch.close_claims(), _LEAVE_SECONDS, "ending the claim in progress")
            failure = _failure_of(claiming) or _failure_of(following)
            claiming.cancel()
            # Left before the attempts have finished, so that what is dispatched meanwhile goes to others.
            await _bounded(dispatch.stop(), _LEAVE_SECONDS, "leaving the group")
            heartbeat.beat_now()
            await self._drain()
            if failure is not None:
                raise failure
        finally:
            for task in (following, claiming, stopping):
                task.cancel()
            await asyncio.gather(following, claiming, stopping, return_exceptions=True)
            await _bounded(dispatch.stop(), _LEAVE_SECONDS, "leaving the group")
            await _bounded(follower.stop(), _LEAVE_SECONDS, "closing the follower")
            self._status = "stopped"
            heartbeat.stop()

    async def _follow(self, follower: LogFollower) -> None:
        await follower.start()
        await follower.run()

    async def _claim(
        self, follower: LogFollower, dispatch: DispatchConsumer, shared: Surroundings, heartbeat: Heartbeat
    ) -> None:
        await follower.caught_up()
        await dispatch.start()
        heartbeat.start()
        ready = asyncio.create_task(self._announce(shared.worker, heartbeat))
        try:
            while True:
                free = self._settings.runner_slots - len(self._held)
                if free > 0:
                    for claim in await dispatch.take(free):
                        self._hold(claim, shared, dispatch)
                elif not await self._wait_for_slot():
                    await dispatch.stay()
        finally:
            ready.cancel()

    async def _announce(self, worker: WorkerIdentity, heartbeat: Heartbeat) -> None:
        """Say that the runner is ready when it has joined, and publish its partitions after each rebalance."""
        await self._joined.wait()
        self._on_ready(worker)
        while True:
            self._joined.clear()
            heartbeat.beat_now()
            await self._joined.wait()

    async def _wait_for_slot(self) -> bool:
        self._slot_freed.clear()
        try:
            await asyncio.wait_for(self._slot_freed.wait(), _STAY_SECONDS)
        except TimeoutError:
            return False
        return True

    def _hold(self, claim: Claim, shared: Surroundings, dispatch: DispatchConsumer) -> None:
        if (held := self._held.get(claim.attempt_id)) is not None:
            held.adopt(claim)
            return
        held = HeldAttempt(claim, shared)
        self._held[claim.attempt_id] = held
        self._held_rollouts[claim.rollout_id] += 1
        if claim.rollout_id in self._cancelled:
            held.stop(CANCELLED)
        task = asyncio.create_task(held.hold())
        self._holds.add(task)
        task.add_done_callback(functools.partial(self._released, held, dispatch))

    def _released(self, held: HeldAttempt, dispatch: DispatchConsumer, task: asyncio.Task[None]) -> None:
        self._holds.discard(task)
        claim = held.claim
        dispatch.finished(claim.attempt_id)
        del self._held[claim.attempt_id]
        self._held_rollouts[claim.rollout_id] -= 1
        if not self._held_rollouts[claim.rollout_id]:
            del self._held_rollouts[claim.rollout_id]
        self._finished_attempts += 1
        self._slot_freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("attempt %s broke the runner's own code", claim.attempt_id, exc_info=error)

    def _on_control(self, event: Event) -> None:
        self._cancelled.take_note(event["rollout_id"], event["action"])
        if event["action"] != "cancel":
            return
        for held in self._held_of(event["rollout_id"]):
            if event["attempt_id"] in (None, held.claim.attempt_id):
                held.stop(CANCELLED)

    def _on_state(self, worker: WorkerIdentity, state: Event) -> None:
        for held in self._held_of(state["rollout_id"]):
            if (cause := stop_for_state(state, held.claim, worker.instance)) is not None:
                held.stop(cause)

    def _held_of(self, rollout_id: str) -> list[HeldAttempt]:
        return [held for held in self._held.values() if held.claim.rollout_id == rollout_id]

    async def _drain(self) -> None:
        """Let running attempts finish; fail those that do not within ``drain_seconds`` or when hurried."""
        await self._wait_all(list(self._holds), self._settings.drain_seconds)
        left = list(self._held.values())
        if not left:
            return
        logger.warning("%d attempts did not finish in time; they end as runner_stopping", len(left))
        for held in left:
            held.stop(RUNNER_STOPPING, at_once=self._hurry.is_set())
        reports = [asyncio.create_task(held.reported.wait()) for held in left]
        await asyncio.wait(reports, timeout=_LEAVE_SECONDS)
        for report in reports:
            report.cancel()

    async def _wait_all(self, tasks: list[asyncio.Task[None]], seconds: float) -> None:
        """Until all are done, the time is over, or somebody is in a hurry."""
        if not tasks:
            return
        hurried = asyncio.create_task(self._hurry.wait())
        done = asyncio.ensure_future(asyncio.wait(tasks, timeout=seconds))
        await asyncio.wait({hurried, done}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        done.cancel()

    def _snapshot(self, worker: WorkerIdentity, dispatch: DispatchConsumer) -> Event:
        """The heartbeat of now; called on the heartbeat's thread."""
        held = list(self._held.values())
        slots = self._settings.runner_slots
        self._host.ping()
        status = self._status if self._status != "idle" or not held else "busy"
        return heartbeat_event(
            worker,
            status=status,
            interval_seconds=self._settings.heartbeat_seconds,
            slots_total=slots,
            slots_free=slots - len(held) if status in ("idle", "busy") else 0,
            partitions=dispatch.partitions,
            held=[attempt.claim for attempt in held if attempt.is_alive],
            stats=process_stats(
                self._started_at,
                attempts_finished=self._finished_attempts,
                agent_loop_lag_seconds=round(self._host.lag_seconds, 3),
            ),
        )


def _gateway_resources(settings: Settings) -> NamedResources:
    """The model behind the gateway, so that an agent runs before anybody has published resources."""
    endpoint = settings.gateway_url.rstrip("/") + "/v1"
    return {"llm": ProxyLLM(endpoint=endpoint, model=settings.upstream_model)}


def _failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    if not task.done() or task.cancelled():
        return None
    return task.exception() or AglStreamError("the runner's loop ended without being asked to")


async def _bounded(work: Coroutine[Any, Any, Any], seconds: float, what: str) -> None:
    """Shutdown steps need the broker, which may be away: none may hold the process for ever."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        logger.warning("%s took longer than %g s and was given up", what, seconds)
    except AglStreamError as error:
        logger.warning("%s failed: %s", what, error)
