"""What the joiner keeps of a span: enough for training data, none of the bodies."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from agl_stream.producers import semconv
from agl_stream.schemas.events import Event

Json = dict[str, Any]


class SpanView(NamedTuple):
    """A span that bears on training: a model call, or something with a reward.

    ``response_id`` and ``choice`` name the answer a model call got; with ``ended_at_us`` and ``by_gateway``, who
    recorded it, they tell two recordings of one call from two calls. ``partition`` and ``offset`` are its place in the
    spans topic.
    """

    partition: int
    offset: int
    span_id: str
    sequence_id: int
    started_at_us: int
    name: str
    is_call: bool
    failed: bool
    model: str | None
    resources_version: int | None
    prompt_token_ids: bytes | None
    response_token_ids: bytes | None
    response_logprobs: bytes | None
    finish_reason: str | None
    ids_missing: str | None
    reward: float | None
    response_id: str | None = None
    choice: int = 0
    agent_name: str | None = None
    ended_at_us: int | None = None
    by_gateway: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """Sequence first; clocks of several machines only break ties."""
        return self.sequence_id, self.started_at_us, self.span_id

    @property
    def weight_bytes(self) -> int:
        """Rough memory it takes."""
        ids = (self.prompt_token_ids, self.response_token_ids, self.response_logprobs)
        return 700 + sum(len(part) for part in ids if part is not None)


def view_of(event: Event, partition: int, offset: int) -> SpanView | None:
    """The view of a SpanRecorded; None when the span does not bear on training."""
    is_call = event["kind"] == "llm_call"
    reward = event["reward"]
    if not is_call and reward is None:
        return None
    response_id, choice, agent_name = _answer(event) if is_call else (None, 0, None)
    return SpanView(
        partition,
        offset,
        event["span_id"],
        event["sequence_id"],
        event["started_at_us"],
        event["name"],
        is_call,
        event["status"] == "error",
        event["model"],
        event["resources_version"],
        event["prompt_token_ids"],
        event["response_token_ids"],
        event["response_logprobs"],
        event["finish_reason"],
        event["ids_missing"],
        reward,
        response_id,
        choice,
        agent_name,
        event["ended_at_us"],
        event["producer"]["name"] == "gateway",
    )


def _answer(event: Event) -> tuple[str | None, int, str | None]:
    """(response id, choice index, agent name) of a model call; the response body is looked into only when the
    attributes do not name the response."""
    attributes = _object(event["attributes"])
    response_id = attributes.get(semconv.RESPONSE_ID)
    if response_id is None and event["response"]:
        response_id = _object(event["response"]).get("id")
    choice = attributes.get(semconv.CHOICE_INDEX, 0)
    agent_name = attributes.get("gen_ai.agent.name") or attributes.get("agent.name")
    return (
        response_id if isinstance(response_id, str) else None,
        choice if isinstance(choice, int) else 0,
        agent_name if isinstance(agent_name, str) else None,
    )


def _object(text: str) -> Json:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
