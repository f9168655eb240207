"""One claimed attempt, from its claim to its acknowledged end."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agl_stream.agents import LitAgent
from agl_stream.consumers.runner.agent_call import agent_call, attempted_rollout
from agl_stream.consumers.runner.agent_host import AgentHost, AgentRun
from agl_stream.consumers.runner.events import Claim, WorkerIdentity, attempt_event
from agl_stream.consumers.runner.gateway_key import with_gateway_key
from agl_stream.consumers.runner.outcome import Outcome, describe, outcome_of_error, outcome_of_result, shorten
from agl_stream.consumers.runner.report import report_end
from agl_stream.consumers.runner.resources_view import ResourcesView
from agl_stream.consumers.runner.stops import Stop, timed_out
from agl_stream.consumers.runner.telemetry import attach_where_traced
from agl_stream.errors import BlobCorrupt, NotFound, UsageError
from agl_stream.producers.attributes import safe_text
from agl_stream.producers.claim_check import ClaimCheck
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.spans import SpanWriter
from agl_stream.schemas.blobs import BlobStore
from agl_stream.schemas.clock import now_us
from agl_stream.settings import Settings

logger = logging.getLogger(__name__)

# A cancelled agent gets this long to clean up, and to write what it still has, before its end is reported.
CANCEL_GRACE_SECONDS = 2.0


@dataclass
class Surroundings:
    """What all attempts of a runner share."""

    settings: Settings
    agent: LitAgent
    producer: EventProducer
    worker: WorkerIdentity
    host: AgentHost
    resources: ResourcesView

    @functools.cached_property
    def claim_check(self) -> ClaimCheck:
        return ClaimCheck(self.settings)

    @functools.cached_property
    def blobs(self) -> BlobStore:
        return BlobStore(self.settings.blob_address())


class HeldAttempt:
    """An attempt in this runner's hands; its methods are for the runner's loop.

    ``hold`` runs it and returns when its slot is free again: its end is acknowledged *and* its agent's code has
    returned. ``stop`` may come at any time; of result, limit and stop the first decides.
    """

    def __init__(self, claim: Claim, shared: Surroundings) -> None:
        self.claim = claim
        self.reported = asyncio.Event()
        self._shared = shared
        self._run: AgentRun | None = None
        self._writer = SpanWriter(shared.producer, claim.rollout_id, claim.attempt_id, claim_check=shared.claim_check)
        self._decided: asyncio.Future[Outcome | Stop] = asyncio.get_running_loop().create_future()
        self._hurry = False

    @property
    def is_alive(self) -> bool:
        """Whether a heartbeat may vouch for it: it is being prepared or reported, or its agent's code runs; of an
        async agent that is only known while its loop answers. Thread-safe."""
        if self.reported.is_set():
            return False
        run = self._run
        loop_is_stuck = self._shared.host.lag_seconds > self._shared.settings.heartbeat_seconds
        return run is None or run.ended.done() or not run.is_async or not loop_is_stuck

    def adopt(self, claim: Claim) -> None:
        """Take a later delivery of the same attempt as the one that runs here already."""
        self.claim = claim

    def stop(self, cause: Stop, *, at_once: bool = False) -> None:
        """End the attempt for a reason from outside; ``at_once`` waits neither for its agent nor for the broker."""
        self._hurry = self._hurry or at_once
        if not self._decided.done():
            self._decided.set_result(cause)

    async def hold(self) -> None:
        """Run the attempt. Raises nothing that an agent, its task or the broker can cause."""
        timer = self._start_timer()
        try:
            await self._start_or_decide()
            decided = await self._decided
            outcome = await self._interrupt(decided) if isinstance(decided, Stop) else decided
            if outcome is not None:
                shared = self._shared
                give_up = lambda: self._hurry  # noqa: E731 - the flag may be raised while the report waits
                await report_end(outcome, self.claim, shared.worker, self._writer, shared.producer, give_up=give_up)
        finally:
            self.reported.set()
            if timer is not None:
                timer.cancel()
        await self._outlast()

    def _start_timer(self) -> asyncio.TimerHandle | None:
        limit = self.claim.dispatch["config"]["timeout_seconds"]
        if limit is None:
            return None
        left = limit - (time.monotonic() - self.claim.claimed_monotonic)
        return asyncio.get_running_loop().call_later(left, self.stop, timed_out(limit))

    async def _start_or_decide(self) -> None:
        try:
            await self._start()
        except Exception as error:  # noqa: BLE001 - an agent's own is_async, or no thread left to start it in
            if not self._decided.done():
                self._decided.set_result(_outcome_of(None, error))

    async def _start(self) -> None:
        """Prepare what the agent needs and call it; a failure to prepare decides the attempt."""
        call = await self._prepare() if self._is_ready() else await self._prepare_unless_decided()
        if self._decided.done():
            return
        if isinstance(call, Outcome):
            self._decided.set_result(call)
            return
        shared, claim = self._shared, self.claim
        event = attempt_event(claim, shared.worker, "running", now_us())
        asyncio.ensure_future(shared.producer.adeliver("attempts", event, key=claim.rollout_id)).add_done_callback(
            _log_failure
        )
        assert call is not None
        attach_where_traced()
        self._run = shared.host.start(call, is_async=shared.agent.is_async(), name=claim.attempt_id)
        self._run.ended.add_done_callback(self._returned)

    def _returned(self, ended: asyncio.Future[tuple[Any, BaseException | None]]) -> None:
        if not self._decided.done():
            self._decided.set_result(_outcome_of(*ended.result()))

    def _is_ready(self) -> bool:
        dispatch = self.claim.dispatch
        known = self._shared.resources.has(dispatch["resources_id"], dispatch["resources_version"])
        return known and dispatch["input_ref"] is None

    async def _prepare_unless_decided(self) -> Callable[[], Any] | Outcome | None:
        preparing = asyncio.ensure_future(self._prepare())
        await asyncio.wait({preparing, self._decided}, return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():
            preparing.cancel()
            return None
        return preparing.result()

    async def _prepare(self) -> Callable[[], Any] | Outcome:
        """The call to make, or how the attempt fails because it cannot be made."""
        dispatch, shared = self.claim.dispatch, self._shared
        try:
            resources = await shared.resources.get(
                dispatch["resources_id"], dispatch["resources_version"], shared.settings.resources_wait_seconds
            )
            text = dispatch["input"]
            if dispatch["input_ref"] is not None:
                text = await asyncio.to_thread(shared.blobs.get, dispatch["input_ref"])
            task, metadata = json.loads(text), json.loads(dispatch["metadata"] or "{}")
            rollout = attempted_rollout(self.claim, shared.worker, task, metadata)
        except (NotFound, UsageError) as error:
            return Outcome("failed", reason_code="unknown_resources", detail=shorten(safe_text(error)))
        except (BlobCorrupt, OSError) as error:
            return Outcome("failed", reason_code="blob_missing", detail=describe(error))
        except (ValueError, RecursionError) as error:
            return Outcome("failed", reason_code="bad_json", detail=f"the task cannot be read: {describe(error)}")
        return agent_call(shared.agent, self._writer, rollout, with_gateway_key(resources, shared.settings))

    async def _interrupt(self, cause: Stop) -> Outcome | None:
        """Cancel the agent and say what to report, if anything."""
        run = self._run
        if run is not None and not run.ended.done():
            run.cancel()
            if run.is_async and not self._hurry:
                await asyncio.wait({run.ended}, timeout=CANCEL_GRACE_SECONDS)
        return Outcome(cause.status, reason_code=cause.reason_code, detail=cause.detail) if cause.report else None

    async def _outlast(self) -> None:
        """An agent that does not let go keeps its slot: its thread, memory and connections are still in use."""
        if self._run is not None and not self._run.ended.done() and not self._hurry:
            logger.warning(
                "the agent of %s goes on after its attempt ended; its slot is not free until it returns",
                self.claim.attempt_id,
            )
            await self._run.ended


def _outcome_of(result: Any, error: BaseException | None) -> Outcome:
    """Never raises: an attempt that is not decided holds its slot for ever, and heartbeats vouch for it."""
    try:
        return outcome_of_result(result) if error is None else outcome_of_error(error)
    except BaseException:  # noqa: BLE001 - not even the type of what the agent gave can be named
        code = "bad_result" if error is None else "agent_error"
        return Outcome("failed", reason_code=code, detail="what the agent returned or raised cannot be described")


def _log_failure(delivery: asyncio.Future[Any]) -> None:
    if not delivery.cancelled() and (error := delivery.exception()) is not None:
        logger.warning("the start of an attempt could not be reported: %s", error)
