"""What a closed rollout yields: its end, its spans and an adapter make one TripletsJoined. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.joiner.adapter import Adapted, Adapter, Refused
from agl_stream.streams.joiner.spans import SpanView
from agl_stream.streams.store.port import latest_attempt

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


class Ending(NamedTuple):
    """A terminal RolloutStateChanged, without what the join does not need; attempt fields are the deciding one's."""

    version: int
    status: str
    reason_code: str | None
    mode: str
    run_id: str | None
    group_id: str | None
    group_size: int | None
    resources_id: str | None
    resources_version: int | None
    attempt_id: str
    attempt_number: int
    attempt_reward: float | None
    attempt_reason: str | None
    attempt_detail: str | None
    dispatched_at_us: int

    def says_the_same(self, other: Ending) -> bool:
        """Whether both lead to the same triplets from the same spans."""
        return self._replace(version=0, dispatched_at_us=0) == other._replace(version=0, dispatched_at_us=0)


def ending_of(state: Event) -> Ending:
    """The ending of a terminal state; a rollout that never had an attempt has attempt number 0."""
    attempt = latest_attempt(state) or {}
    return Ending(
        *(state[name] for name in Ending._fields[:9]),
        attempt_id=attempt.get("attempt_id", ""),
        attempt_number=attempt.get("attempt_number", 0),
        attempt_reward=attempt.get("reward"),
        attempt_reason=attempt.get("reason_code"),
        attempt_detail=attempt.get("detail"),
        dispatched_at_us=attempt.get("dispatched_at_us", 0),
    )


class Outcome(NamedTuple):
    """A TripletsJoined without revision and event id, and the spans that could not be used."""

    event: Event
    refused: list[Refused]

    def revised(self, revision: int) -> Event:
        """The event as the given revision. Its id follows from what it says: emitted again, it is the same event."""
        event = self.event
        identity = event_id("triplets", event["rollout_id"], event["attempt_id"], revision, event["content_hash"])
        return {**event, "revision": revision, "event_id": identity}


def join(
    rollout_id: str, ending: Ending, spans: Sequence[SpanView], spans_total: int, home: int, adapter: Adapter
) -> Outcome:
    """``spans``: the deciding attempt's relevant ones, each span_id once; ``spans_total``: how many it has in all.
    ``home``: the rollout's partition of the spans topic, where offsets are counted.

    A rollout that did not succeed has no triplets, and no spans are judged. One without any reward keeps its
    triplets: a reward may come later, or may not be wanted.
    """
    if ending.status == "succeeded":
        adapted = adapter.adapt(spans)
        reward, reason_code, detail = _judge(ending, adapted)
        triplets = adapted.triplets if reason_code in (None, "no_reward") else []
    else:
        adapted, triplets = Adapted(), []
        reward = ending.attempt_reward if _finite(ending.attempt_reward) else None
        fallback = "cancelled" if ending.status == "cancelled" else "agent_error"
        reason_code = ending.reason_code or ending.attempt_reason or fallback
        detail = ending.attempt_detail
    offsets = [span.offset for span in spans if span.partition == home]
    event: Event = {
        "rollout_id": rollout_id,
        "attempt_id": ending.attempt_id,
        "attempt_number": ending.attempt_number,
        "status": ending.status,
        "reason_code": reason_code,
        "detail": detail,
        "mode": ending.mode,
        "run_id": ending.run_id,
        "group_id": ending.group_id,
        "group_size": ending.group_size,
        "resources_id": ending.resources_id,
        "resources_version": ending.resources_version,
        "reward": reward,
        "triplets": triplets,
        "adapter": adapter.name,
        "adapter_version": adapter.version,
        "spans_total": spans_total,
        "spans_partition": home if offsets else -1,
        "spans_first_offset": min(offsets, default=-1),
        "spans_last_offset": max(offsets, default=-1),
    }
    event["content_hash"] = content_hash(event)
    return Outcome(event, adapted.refused)


def _judge(ending: Ending, adapted: Adapted) -> tuple[float | None, str | None, str | None]:
    """(reward, reason, detail) of a rollout that succeeded."""
    reward = ending.attempt_reward if ending.attempt_reward is not None else adapted.last_reward
    if reward is not None and not _finite(reward):
        return None, "bad_reward", f"the reward is {reward}"
    if adapted.reason_code is not None:
        return reward, adapted.reason_code, adapted.detail
    return reward, (None if reward is not None else "no_reward"), adapted.detail


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_HASHED_BYTES = ("prompt_token_ids", "response_token_ids", "response_logprobs")


def content_hash(event: Event) -> str:
    """SHA-256 (hex) over what training depends on: attempt, status, reason, reward, and each triplet's ids, logprobs,
    reward, order, version, finish reason and metadata. Where the spans lay on the log does not count."""
    digest = hashlib.sha256(
        orjson.dumps([event[name] for name in ("rollout_id", "attempt_id", "status", "reason_code", "reward")])
    )
    for triplet in event["triplets"]:
        parts = [triplet[name] for name in _HASHED_BYTES]
        plain = [value for name, value in sorted(triplet.items()) if name not in _HASHED_BYTES]
        digest.update(orjson.dumps([*plain, [None if part is None else len(part) for part in parts]]))
        for part in parts:
            digest.update(part or b"")
    return digest.hexdigest()
