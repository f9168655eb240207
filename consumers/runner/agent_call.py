"""What an agent is called with, made from a dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agl_stream.agents import LitAgent
from agl_stream.consumers.runner.events import Claim, WorkerIdentity
from agl_stream.producers.context import activate
from agl_stream.producers.spans import SpanWriter
from agl_stream.types import Attempt, AttemptedRollout, NamedResources, RolloutConfig


def attempted_rollout(claim: Claim, worker: WorkerIdentity, task: Any, metadata: dict[str, Any]) -> AttemptedRollout:
    """The rollout and attempt as the agent sees them. Raises ValueError for values the types do not allow."""
    dispatch = claim.dispatch
    return AttemptedRollout(
        rollout_id=claim.rollout_id,
        input=task,
        start_time=dispatch["requested_at_us"] / 1e6,
        mode=None if dispatch["mode"] == "unknown" else dispatch["mode"],
        resources_id=dispatch["resources_id"],
        resources_version=dispatch["resources_version"],
        status="preparing",
        config=RolloutConfig(**dispatch["config"]),
        metadata=metadata,
        run_id=dispatch["run_id"],
        group_id=dispatch["group_id"],
        group_size=dispatch["group_size"],
        attempt=Attempt(
            rollout_id=claim.rollout_id,
            attempt_id=claim.attempt_id,
            sequence_id=dispatch["attempt_number"],
            start_time=claim.claimed_at_us / 1e6,
            worker_id=worker.worker_id,
        ),
    )


def agent_call(
    agent: LitAgent, writer: SpanWriter, rollout: AttemptedRollout, resources: NamedResources
) -> Callable[[], Any]:
    """The call to make, with the rollout active for the emitters; a coroutine function when the agent is async."""
    method = agent.method_for(rollout.mode)

    async def call_async() -> Any:
        with activate(writer):
            return await method(rollout.input, resources=resources, rollout=rollout)

    def call() -> Any:
        with activate(writer):
            return method(rollout.input, resources=resources, rollout=rollout)

    return call_async if agent.is_async() else call
