"""Events and records for tests: every field at its schema's default unless given."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

from agl_stream.schemas import events
from agl_stream.schemas.ids import attempt_id, event_id
from agl_stream.schemas.tokens import pack_floats, pack_ids
from agl_stream.schemas.topics import EVENT_TOPIC

START_US = 1_790_000_000_000_000


@dataclass
class Placed:
    """An event at a place on the log; what the store's ``apply`` takes."""

    topic: str
    partition: int
    offset: int
    event: events.Event


@cache
def _defaults(event_type: str) -> dict[str, Any]:
    plain = {"string": "", "int": 0, "long": 0, "double": 0.0, "bytes": b""}

    def value(field: dict[str, Any]) -> Any:
        if "default" in field:
            return field["default"]
        kind = field["type"]
        if isinstance(kind, str):
            return plain.get(kind)
        return kind["symbols"][0] if kind["type"] == "enum" else []

    return {field["name"]: value(field) for field in events.current(event_type)["fields"]}


def make(event_type: str, **given: Any) -> events.Event:
    """An event of the current schema."""
    filled = copy.deepcopy(_defaults(event_type))
    unknown = given.keys() - filled.keys()
    assert not unknown, f"{event_type} has no field {unknown}"
    filled |= given
    filled["event_id"] = filled["event_id"] or event_id(event_type, *sorted((k, str(v)) for k, v in given.items()))
    filled["occurred_at_us"] = filled["occurred_at_us"] or START_US
    return filled


def attempt_state(rollout_id: str, number: int = 1, **given: Any) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id(rollout_id, number),
        "attempt_number": number,
        "status": "succeeded",
        "delivery": 1,
        "worker_id": "runner-1",
        "worker_instance": "i",
        "dispatched_at_us": START_US,
        "started_at_us": START_US,
        "ended_at_us": None,
        "reward": None,
        "reason_code": None,
        "detail": None,
        "metadata": "{}",
    } | given


def rollout(rollout_id: str, version: int = 1, status: str = "queuing", **given: Any) -> events.Event:
    given = {"mode": "train", "requested_at_us": START_US, "run_id": "run-1"} | given
    return make("RolloutStateChanged", rollout_id=rollout_id, version=version, status=status, **given)


def ended(rollout_id: str, version: int = 5, status: str = "succeeded", number: int = 1, **given: Any) -> events.Event:
    """A terminal state whose attempts 1..number ended; ``reward``, ``attempt_reason`` are the last attempt's."""
    reward, reason = given.pop("reward", None), given.pop("attempt_reason", None)
    attempts = [attempt_state(rollout_id, n, status="failed") for n in range(1, number)]
    last = "succeeded" if status == "succeeded" else "failed"
    attempts.append(attempt_state(rollout_id, number, status=last, reward=reward, reason_code=reason))
    return rollout(rollout_id, version, status, attempts=attempts, ended_at_us=START_US + 9, **given)


def span(rollout_id: str, span_id: str, sequence_id: int = 1, *, number: int = 1, **given: Any) -> events.Event:
    given = {"attempt_id": attempt_id(rollout_id, number), "name": "step", "started_at_us": START_US} | given
    return make("SpanRecorded", rollout_id=rollout_id, span_id=span_id, sequence_id=sequence_id, **given)


def llm_call(
    rollout_id: str, span_id: str, sequence_id: int, prompt_ids: list[int], response_ids: list[int], **given: Any
) -> events.Event:
    given = {
        "kind": "llm_call",
        "name": "openai.chat.completion",
        "status": "ok",
        "model": "policy",
        "resources_version": 3,
        "prompt_token_ids": pack_ids(prompt_ids),
        "response_token_ids": pack_ids(response_ids),
        "response_logprobs": pack_floats([-0.5] * len(response_ids)),
        "finish_reason": "stop",
    } | given
    return span(rollout_id, span_id, sequence_id, **given)


def reward_span(rollout_id: str, span_id: str, sequence_id: int, reward: float | None, **given: Any) -> events.Event:
    return span(rollout_id, span_id, sequence_id, kind="reward", reward=reward, **given)


def place(event_type: str, event: events.Event, partition: int = 0, offset: int = 0) -> Placed:
    return Placed(EVENT_TOPIC[event_type], partition, offset, event)
