"""From a call and its answer to the spans that record it: pure, one span for each choice.

All choices of a call (``n`` above 1) carry the same request and response id; each has its own response, token ids
and logprobs, and the attributes ``agentlightning.choice.index`` and ``.count``. Token counts stand on the first only,
so that sums over spans are right. Token ids leave the stored response (they are in the typed fields), and so do
logprobs that only the gateway had asked for.
"""

from __future__ import annotations

from typing import Any

from agl_stream.producers import semconv
from agl_stream.producers.attributes import utf8
from agl_stream.producers.gateway import readable
from agl_stream.producers.gateway.call import Call
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import new_span_id
from agl_stream.schemas.tokens import pack_floats, pack_ids

NOT_GIVEN = "upstream_gave_none"
MALFORMED = "malformed"
FAILED = "upstream_error"
HUNG_UP = "client_disconnected"
CUT_SHORT = "stream_cut_short"


def answered(
    call: Call,
    response: dict[str, Any],
    *,
    resources_id: str | None = None,
    resources_version: int | None = None,
    ended_at_us: int,
    attributes: dict[str, Any] | None = None,
    failure: str | None = None,
    ids_missing: str = NOT_GIVEN,
    ids_unsure: bool = False,
    raw: bytes | None = None,
) -> list[Event]:
    """Spans of a call that was answered. ``failure`` marks an answer that did not end well (status error);
    ``ids_missing`` is the reason given where the answer has no token ids. ``ids_unsure``: some may be lost, so none are
    recorded. ``raw`` is the answer's body, stored where the answer is nested too deep to be written again."""
    choices = response.get("choices")
    choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    head = {key: value for key, value in response.items() if key not in ("choices", "prompt_token_ids")}
    common = _common_attributes(call, response) | (attributes or {})
    spans = []
    for position, choice in enumerate(choices or [{}]):
        prompt_ids, response_ids, missing = (
            (None, None, MALFORMED) if ids_unsure else token_ids(response, choice, position)
        )
        logprobs, logprobs_missing = _logprobs(choice, response_ids, chat=call.chat)
        mine = dict(common) if position == 0 else {key: common[key] for key in common if not _counts_tokens(key)}
        if len(choices) > 1:
            index = choice.get("index")
            mine[semconv.CHOICE_INDEX] = index if isinstance(index, int) else position
            mine[semconv.CHOICE_COUNT] = len(choices)
        if logprobs_missing is not None and missing is None:
            mine["agentlightning.logprobs_missing"] = logprobs_missing
        stored = head | ({"choices": [_stored_choice(call, choice)]} if choices else {})
        if position:
            stored.pop("usage", None)
        spans.append(
            _span(call, ended_at_us)
            | {
                "sequence_id": call.sequence_id + position,
                "status": "ok" if failure is None else "error",
                "status_description": _text(failure),
                "model": _text(response.get("model")) or _text(call.body.get("model")),
                "resources_id": _text(resources_id),
                "resources_version": resources_version,
                "prompt_token_ids": prompt_ids,
                "response_token_ids": response_ids,
                "response_logprobs": logprobs,
                "finish_reason": _text(choice.get("finish_reason")),
                "ids_missing": ids_missing if missing == NOT_GIVEN else missing,
                "response": readable.dumps(stored, raw),
                "attributes": readable.dumps(mine),
            }
        )
    return spans


def failed(
    call: Call, description: str, *, ended_at_us: int, response: bytes | None = None, attributes: dict[str, Any]
) -> Event:
    """The span of a call that got no answer, or an error for an answer."""
    return _span(call, ended_at_us) | {
        "status": "error",
        "status_description": utf8(description[:1000]),
        "model": _text(call.body.get("model")),
        "ids_missing": HUNG_UP if description == HUNG_UP else FAILED,
        "response": None if response is None else response.decode("utf-8", "replace"),
        "attributes": readable.dumps(_common_attributes(call, {}) | attributes),
    }


def token_ids(
    response: dict[str, Any], choice: dict[str, Any], position: int
) -> tuple[bytes | None, bytes | None, str | None]:
    """(prompt ids, response ids, None), packed; or (None, None, why they are missing).

    Read from where vLLM puts them (``prompt_token_ids``; a choice's ``token_ids``), where its earlier patches did
    (``response_token_ids``), and where LiteLLM passes them on (``provider_specific_fields``).
    """
    prompt = choice.get("prompt_token_ids", response.get("prompt_token_ids"))
    ids = choice.get("token_ids")
    if ids is None and isinstance(fields := choice.get("provider_specific_fields"), dict):
        ids = fields.get("token_ids")
    if ids is None and isinstance(lists := response.get("response_token_ids"), list) and position < len(lists):
        ids = lists[position]
    if prompt is None or ids is None:
        return None, None, NOT_GIVEN
    try:
        return pack_ids(prompt), pack_ids(ids), None
    except (TypeError, OverflowError):
        return None, None, MALFORMED


def _logprobs(choice: dict[str, Any], ids: bytes | None, *, chat: bool) -> tuple[bytes | None, str | None]:
    """(packed logprobs, None) or (None, why not). A NaN stays one: it is for the joiner to reject."""
    given = choice.get("logprobs")
    if not isinstance(given, dict):
        return None, NOT_GIVEN
    try:
        values = [token["logprob"] for token in given["content"]] if chat else given["token_logprobs"]
        packed = pack_floats(values)
    except (KeyError, TypeError, OverflowError):
        return None, MALFORMED
    if ids is not None and len(packed) != len(ids):
        return None, f"{len(values)} logprobs for {len(ids) // 4} tokens"
    return packed, None


def _span(call: Call, ended_at_us: int) -> Event:
    return {
        "rollout_id": call.rollout_id,
        "attempt_id": call.attempt_id,
        "span_id": new_span_id(),
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "sequence_id": call.sequence_id,
        "name": "openai.chat.completion" if call.chat else "openai.completion",
        "kind": "llm_call",
        "started_at_us": call.started_at_us,
        "ended_at_us": max(ended_at_us, call.started_at_us),
        "request": call.data.decode("utf-8", "replace"),
    }


def _common_attributes(call: Call, response: dict[str, Any]) -> dict[str, Any]:
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    found = {
        semconv.GENAI_OPERATION: "chat" if call.chat else "text_completion",
        semconv.REQUEST_MODEL: call.body.get("model"),
        semconv.RESPONSE_MODEL: response.get("model"),
        semconv.RESPONSE_ID: response.get("id"),
        semconv.INPUT_TOKENS: usage.get("prompt_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("completion_tokens"),
    }
    return {
        key: utf8(value) if isinstance(value, str) else value
        for key, value in found.items()
        if isinstance(value, str | int)
    }


def _counts_tokens(key: str) -> bool:
    return key in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)


def _stored_choice(call: Call, choice: dict[str, Any]) -> dict[str, Any]:
    left_out = {"token_ids", "prompt_token_ids"} | (set() if call.asked_for_logprobs else {"logprobs"})
    return {key: value for key, value in choice.items() if key not in left_out}


def _text(value: Any) -> str | None:
    return utf8(value) if isinstance(value, str) else None
