"""Each recorded model call is a triplet: prompt ids, response ids, logprobs, and the reward given right after it.

- Order is by sequence_id, then start time, then span id.
- One call recorded twice (by the gateway and by an instrumented client) has one response id and choice: the
  recording with token ids stands, the other is left out. The converse does not hold, as some servers give every
  answer the same id. So two recordings are of one call only when one of them lacks token ids, or when their prompt
  and response ids are equal and they overlap in time or are the gateway's and a client's; all others are calls of
  their own. The gateway records a call once, so two recordings of its are never the same call. Where a recording may
  belong to several calls, it belongs to the one that started nearest to it.
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
    version = "2"

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
            if not _complete(call):
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
    answers: dict[tuple[str, int], list[SpanView]] = {}
    for span in ordered:
        if span.is_call:
            answers.setdefault((span.response_id or f"span {span.span_id}", span.choice), []).append(span)
    calls = [call for recordings in answers.values() for call in _told_apart(recordings)]
    kept_as = {recording.span_id: call[0].span_id for call in calls for recording in call}
    return sorted((call[0] for call in calls), key=lambda span: span.order), kept_as


def _told_apart(recordings: list[SpanView]) -> list[list[SpanView]]:
    """The calls among recordings of one response id and choice: each as its recordings, of which the first stands."""
    if len(recordings) == 1:
        return [recordings]
    calls: list[list[SpanView]] = []
    by_ids: dict[tuple[bytes | None, bytes | None], list[list[SpanView]]] = {}
    # what can stand for a call comes first, then what may belong to it
    for span in sorted(recordings, key=lambda span: (not _complete(span), span.failed, not span.by_gateway)):
        alike = by_ids.setdefault((span.prompt_token_ids, span.response_token_ids), []) if _complete(span) else calls
        same = [call for call in alike if _may_be_of(call, span)]
        if same:
            min(same, key=lambda call: abs(call[0].started_at_us - span.started_at_us)).append(span)
            continue
        calls.append([span])
        if alike is not calls:
            alike.append(calls[-1])
    return calls


def _may_be_of(call: list[SpanView], span: SpanView) -> bool:
    """Whether ``span``, which lacks ids or has those of ``call``, may be another recording of it."""
    if span.by_gateway and any(recording.by_gateway for recording in call):
        return False
    if not _complete(span):
        return True
    pair = len(call) == 1 and call[0].by_gateway != span.by_gateway
    return pair or any(_overlap(recording, span) for recording in call)


def _complete(call: SpanView) -> bool:
    return bool(call.prompt_token_ids and call.response_token_ids)


def _overlap(one: SpanView, two: SpanView) -> bool:
    one_end, two_end = one.ended_at_us or one.started_at_us, two.ended_at_us or two.started_at_us
    return one.started_at_us <= two_end and two.started_at_us <= one_end


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
