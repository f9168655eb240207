"""Events for the cases, and the ways they get into a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agl_stream.schemas.events import Event
from agl_stream.streams.store import StateStore
from tests.streams.makers import START_US, ended, llm_call, make, place, rollout, span

__all__ = [
    "START_US",
    "beat",
    "ended",
    "ids",
    "joined",
    "llm_call",
    "make",
    "place",
    "published",
    "put",
    "rejected",
    "rollout",
    "settled",
    "span",
    "trained",
]


def put(store: StateStore, event_type: str, *events: Event, partition: int = 0, offset: int = 0) -> None:
    """Apply events of one type in one go, at successive offsets."""
    store.apply([place(event_type, event, partition, offset + n) for n, event in enumerate(events)])


def ids(found: Iterable[Event], name: str = "rollout_id") -> list[Any]:
    return [item[name] for item in found]


def joined(rollout_id: str, revision: int = 0, calls: int = 2, **given: Any) -> Event:
    """TripletsJoined with ``calls`` model calls, each different from the others."""
    triplets = [
        {
            "span_id": f"s{n}", "sequence_id": n, "prompt_token_ids": n.to_bytes(8, "big"),
            "response_token_ids": n.to_bytes(4, "little"), "response_logprobs": None if n % 2 else b"\0\0\0\xbf",
            "reward": None, "resources_version": 2, "finish_reason": "stop", "metadata": f'{{"n": {n}}}',
        }
        for n in range(calls)
    ]  # fmt: skip
    given = {"mode": "train", "group_id": "g", "reward": 1.0, "spans_total": calls, "adapter": "llm_calls"} | given
    return make("TripletsJoined", **({"rollout_id": rollout_id, "revision": revision, "triplets": triplets} | given))


def published(version: int, at: int = START_US, resources_id: str = "rs-1", **given: Any) -> Event:
    return make("ResourcesPublished", resources_id=resources_id, version=version, occurred_at_us=at, **given)


def beat(at: int, status: str = "idle", worker_id: str = "w1", **given: Any) -> Event:
    given = {"role": "runner"} | given
    return make("WorkerHeartbeat", worker_id=worker_id, status=status, occurred_at_us=at, **given)


def settled(rollout_id: str, outcome: str = "trained", reason_code: str | None = None) -> dict[str, Any]:
    """What a manifest says of one rollout."""
    return {
        "rollout_id": rollout_id, "attempt_id": "a", "revision": 0, "group_id": "g", "content_hash": "h",
        "outcome": outcome, "reason_code": reason_code, "reward": None, "rows": 1,
    }  # fmt: skip


def trained(step: int, *told: dict[str, Any], learner_id: str = "l1", **given: Any) -> Event:
    """The manifest of a step."""
    given = {"run_id": "run-1", "ended_at_us": START_US} | given
    return make("BatchTrained", learner_id=learner_id, step=step, rollouts=list(told), **given)


def rejected(offset: int, reason_code: str = "undecodable", **given: Any) -> Event:
    """A reject of the record at ``offset`` of spans partition 1; -1: of no record."""
    given = {
        "source_topic": "spans", "source_partition": 1, "detail": "d", "rejected_by": "sink", "payload": b"\0\xff",
        "payload_length": 2,
    } | given  # fmt: skip
    return make("RecordRejected", source_offset=offset, reason_code=reason_code, **given)
