"""Each recorded model call is a triplet: prompt ids, response ids, logprobs, and the reward given right after it.

- Order is by sequence_id, then start time, then span id.
- One call recorded twice (by the gateway and by an instrumented client) has one response id and choice: the
  recording with token ids stands, the other is left out.
- A reward belongs to the latest model call before it; of several rewards for one call the last stands. The last
  reward of all is the attempt's, unless the attempt's end reported one.
- A failed call is no training data: the agent never had its answer. A call without token ids is left out, and the
  detail says so; when no call has any, the reason is ids_missing.
- Token ids that are no int32s, and logprobs that are not finite, make the whole attempt unusable: training on the
  rest of it would train on something the model did not do. Logprobs whose number differs from the response's are
  dropped and the triplet says so (``logprobs_dropped`` in its metadata).
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence

import orjson

from agl_stream.schemas.events import Event
from agl_stream.streams.joiner.adapter import Adapted, Refused
from agl_stream.streams.joiner.spans import SpanView


class LlmCalls:
    """The default adapter."""

    name = "llm_calls"
    version = "1"

    def adapt(self, spans: Sequence[SpanView]) -> Adapted:
        ordered = sorted(spans, key=lambda span: span.order)
        calls, kept_as = _distinct(ordered)
        refused: list[Refused] = []
        rewards: dict[str, float] = {}
        last_reward: float | None = None
        latest_call: str | None = None
        for span in ordered:
            if span.is_call:
                latest_call = kept_as[span.span_id]
            if span.reward is None:
                continue
            last_reward = span.reward
            if not math.isfinite(span.reward):
                refused.append(Refused(span, "bad_reward", f"span {span.span_id}: reward {span.reward}"))
            elif latest_call is not None:
                rewards[latest_call] = span.reward

        triplets: list[Event] = []
        without_ids: list[SpanView] = []
        unusable: Refused | None = None
        for call in calls:
            if call.failed:
                continue
            if not call.prompt_token_ids or not call.response_token_ids:
                without_ids.append(call)
            elif (fault := _fault(call)) is not None:
                refused.append(fault)
                unusable = unusable or fault
            else:
                triplets.append(_triplet(call, rewards.get(call.span_id)))
        if unusable is not None:
            return Adapted([], last_reward, unusable.reason_code, unusable.detail, refused)
        if triplets:
            detail = None if not without_ids else _left_out(without_ids, len(calls))
            return Adapted(triplets, last_reward, None, detail, refused)
        if without_ids:
            return Adapted([], last_reward, "ids_missing", _left_out(without_ids, len(calls)), refused)
        detail = f"all {len(calls)} model calls failed" if calls else None
        return Adapted([], last_reward, "no_model_calls", detail, refused)


def _distinct(ordered: Sequence[SpanView]) -> tuple[list[SpanView], dict[str, str]]:
    """The calls, each once, and for every recorded call's span_id that of the recording that stands for it."""
    standing: dict[tuple[str, int], SpanView] = {}
    groups: dict[str, tuple[str, int]] = {}
    for span in ordered:
        if span.is_call:
            group = (span.response_id or f"span {span.span_id}", span.choice)
            groups[span.span_id] = group
            known = standing.get(group)
            if known is None or (_usable(span) and not _usable(known)):
                standing[group] = span
    calls = sorted(standing.values(), key=lambda span: span.order)
    return calls, {span_id: standing[group].span_id for span_id, group in groups.items()}


def _usable(call: SpanView) -> bool:
    return not call.failed and bool(call.response_token_ids)


def _fault(call: SpanView) -> Refused | None:
    for ids in (call.prompt_token_ids, call.response_token_ids):
        if len(ids or b"") % 4:
            return Refused(call, "bad_tokens", f"span {call.span_id}: {len(ids or b'')} bytes of token ids, no int32s")
    logprobs = call.response_logprobs
    if logprobs is not None and len(logprobs) % 4 == 0 and not math.isfinite(_sum(logprobs)):
        return Refused(call, "nan_logprob", f"span {call.span_id}: a logprob is not finite")
    return None


def _sum(logprobs: bytes) -> float:
    """Not finite exactly when one of them is not: float32s do not overflow a double."""
    values = array.array("f", logprobs)
    if sys.byteorder == "big":
        values.byteswap()
    return sum(values)


def _triplet(call: SpanView, reward: float | None) -> Event:
    about: dict[str, object] = {
        "response_id": call.response_id,
        "agent_name": call.agent_name,
        "model": call.model,
        "name": call.name,
    }
    logprobs, ids = call.response_logprobs, call.response_token_ids or b""
    if logprobs is not None and len(logprobs) != len(ids):
        about["logprobs_dropped"] = f"{len(logprobs) / 4:g} logprobs for {len(ids) // 4} tokens"
        logprobs = None
    return {
        "span_id": call.span_id,
        "sequence_id": call.sequence_id,
        "prompt_token_ids": call.prompt_token_ids,
        "response_token_ids": ids,
        "response_logprobs": logprobs,
        "reward": reward,
        "resources_version": call.resources_version,
        "finish_reason": call.finish_reason,
        "metadata": orjson.dumps({name: value for name, value in about.items() if value is not None}).decode(),
    }


def _left_out(without_ids: Sequence[SpanView], calls: int) -> str:
    why = without_ids[0].ids_missing or "no reason given"
    return f"{len(without_ids)} of {calls} model calls carry no token ids ({why}: span {without_ids[0].span_id})"
