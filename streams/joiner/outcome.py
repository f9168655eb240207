"""What a closed rollout yields: its end, its spans and an adapter make one TripletsJoined. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id
from agl_stream.streams.joiner.adapter import Adapted, Adapter, Refused
from agl_stream.streams.joiner.spans import SpanView
from agl_stream.streams.store.port import latest_attempt

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
DETAIL_LIMIT = 1_000
"""Characters of an event's detail."""


class Ending(NamedTuple):
    """A terminal RolloutStateChanged, without what the join does not need; attempt fields are the deciding one's.
    ``dispatched_at_us``: no span of the attempt is older."""

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
        dispatched_at_us=_first_dispatched_at_us(state, attempt),
    )


def _first_dispatched_at_us(state: Event, attempt: Mapping[str, Any]) -> int:
    """Or earlier: an attempt names its latest dispatch, and whoever got an earlier one may have recorded spans."""
    at_us: int = attempt.get("dispatched_at_us", 0)
    return at_us if attempt.get("delivery", 1) <= 1 else min(at_us, state["requested_at_us"])


class Outcome(NamedTuple):
    """A TripletsJoined without revision and event id, and the spans that could not be used."""

    event: Event
    refused: list[Refused]

    def revised(self, revision: int) -> Event:
        """The event as the given revision. Its id follows from what it says: emitted again, it is the same event."""
        return _identified({**self.event, "revision": revision})


def without_triplets(event: Event, reason_code: str, detail: str) -> Event:
    """A revision that the log cannot take, as one that it can; it says why."""
    kept = {**event, "triplets": [], "reason_code": reason_code, "detail": detail[:DETAIL_LIMIT]}
    return _identified({**kept, "content_hash": content_hash(kept)})


def _identified(event: Event) -> Event:
    parts = (event[name] for name in ("rollout_id", "attempt_id", "revision", "content_hash"))
    return {**event, "event_id": event_id("triplets", *parts)}


def join(
    rollout_id: str,
    ending: Ending,
    spans: Sequence[SpanView],
    spans_total: int,
    home: int,
    adapter: Adapter,
    *,
    max_bytes: int | None = None,
) -> Outcome:
    """``spans``: the deciding attempt's relevant ones, each span_id once; ``spans_total``: how many it has in all.
    ``home``: the rollout's partition of the spans topic, where offsets are counted.

    A rollout that did not succeed has no triplets, and no spans are judged. One without any reward keeps its
    triplets: a reward may come later, or may not be wanted. One whose triplets could make a record of more than
    ``max_bytes`` has none, with the reason record_too_large, and its largest call is refused: part of a rollout
    is not what the model did.
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
        "detail": None if detail is None else detail[:DETAIL_LIMIT],
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
    refused = adapted.refused
    if triplets and max_bytes is not None and (size := record_bytes(event)) > max_bytes:
        refusal = _too_large(event, spans, size, max_bytes)
        refused = [*refused, refusal]
        event |= {"reason_code": refusal.reason_code, "detail": refusal.detail, "triplets": []}
    event["content_hash"] = content_hash(event)
    return Outcome(event, refused)


def _judge(ending: Ending, adapted: Adapted) -> tuple[float | None, str | None, str | None]:
    """(reward, reason, detail) of a rollout that succeeded."""
    reward = ending.attempt_reward if ending.attempt_reward is not None else adapted.last_reward
    if reward is not None and not _finite(reward):
        return None, "bad_reward", f"the reward is {reward}"
    if adapted.reason_code is not None:
        return reward, adapted.reason_code, adapted.detail
    return reward, (None if reward is not None else "no_reward"), adapted.detail


_SLACK_BYTES = 2048
_NOT_RECKONED = frozenset({"triplets", "content_hash", "revision", "event_id"})


def record_bytes(event: Event) -> int:
    """What a TripletsJoined takes on the log, never less than it will: Avro writes a text or bytes as a length of up
    to five bytes and what it holds, any other value in at most ten, a union's branch in one. The record's key counts,
    too; hash, revision and what the producer fills in lie within the slack."""
    plain = sum(_value_bytes(value) for name, value in event.items() if name not in _NOT_RECKONED)
    key = _value_bytes(event["group_id"] or event["rollout_id"])
    return _SLACK_BYTES + plain + key + sum(_value_bytes(v) for t in event["triplets"] for v in t.values())


def _value_bytes(value: object) -> int:
    if isinstance(value, bytes):
        return 6 + len(value)
    return 6 + len(value.encode()) if isinstance(value, str) else 11


def _too_large(event: Event, spans: Sequence[SpanView], size: int, max_bytes: int) -> Refused:
    triplets = event["triplets"]
    largest = max(triplets, key=lambda t: len(t["prompt_token_ids"]) + len(t["response_token_ids"]))
    prompt, response = (
        sum(len(triplet[name]) for triplet in triplets) // 4 for name in ("prompt_token_ids", "response_token_ids")
    )
    detail = (
        f"{len(triplets)} model calls with {prompt:,} prompt and {response:,} response tokens make a record of about "
        f"{size:,} bytes, more than AGL_STREAM_MAX_RECORD_BYTES={max_bytes:,}; the largest call is span "
        f"{largest['span_id']} with {len(largest['prompt_token_ids']) // 4:,} prompt tokens. Raise "
        "AGL_STREAM_MAX_RECORD_BYTES and the broker's message.max.bytes, or make rollouts shorter"
    )
    span = next(span for span in spans if span.span_id == largest["span_id"])
    return Refused(span, "record_too_large", detail)


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
