"""Token ids and logprobs out of span attributes, from every place the known instrumentations put them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from agl_stream.producers import json_text
from agl_stream.schemas.tokens import pack_floats, pack_ids

_OUTPUT = "agentlightning.operation.output"
_PROMPT_IDS = ("prompt_token_ids", "llm.hosted_vllm.prompt_token_ids", f"{_OUTPUT}.prompt_token_ids")
_RESPONSE_IDS = (
    "response_token_ids",
    "llm.hosted_vllm.response_token_ids",
    f"{_OUTPUT}.response_token_ids",
    f"{_OUTPUT}.response_token_ids.0",
    f"{_OUTPUT}.choices.0.token_ids",
    f"{_OUTPUT}.choices.0.provider_specific_fields.token_ids",
)
_CHOICES = "llm.hosted_vllm.choices"
_LONGEST_LITERAL = 8_000_000

NOT_GIVEN = "instrumentation_gave_none"
MALFORMED = "malformed"


def token_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields prompt_token_ids, response_token_ids, response_logprobs and ids_missing of a model call."""
    prompt = _first(attributes, _PROMPT_IDS)
    response = _first(attributes, _RESPONSE_IDS)
    if response is None:
        response = _of_choice(_literal(attributes.get(_CHOICES)))
    fields: dict[str, Any] = {"ids_missing": NOT_GIVEN}
    if prompt is not None and response is not None:
        try:
            fields = {
                "prompt_token_ids": pack_ids(_flat(prompt)),
                "response_token_ids": pack_ids(_flat(response)),
                "ids_missing": None,
            }
        except (TypeError, OverflowError):
            fields = {"ids_missing": MALFORMED}
    logprobs = _logprobs(attributes.get("logprobs.content"))
    ids = fields.get("response_token_ids")
    if logprobs is not None and (ids is None or len(ids) == len(logprobs)):
        fields["response_logprobs"] = logprobs
    return fields


def _first(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        value = _literal(attributes.get(name))
        if isinstance(value, list | tuple) and value:
            return value
    return None


def _literal(value: Any) -> Any:
    """A value as it is, or what the text of one says: JSON, or a Python literal as some exporters write it."""
    if not isinstance(value, str) or len(value) > _LONGEST_LITERAL:
        return value
    try:
        return json_text.loads(value)
    except json_text.BadJson:
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _flat(ids: Sequence[Any]) -> Sequence[Any]:
    """Ids of the first choice, where there is a list for each."""
    return ids[0] if ids and isinstance(ids[0], list | tuple) else ids


def _of_choice(choices: Any) -> Any:
    if not isinstance(choices, list | tuple) or not choices or not isinstance(choices[0], Mapping):
        return None
    choice = choices[0]
    specific = choice.get("provider_specific_fields")
    return choice.get("token_ids") or (specific.get("token_ids") if isinstance(specific, Mapping) else None)


def _logprobs(value: Any) -> bytes | None:
    entries = _literal(value)
    try:
        return pack_floats([entry["logprob"] if isinstance(entry, Mapping) else entry for entry in entries])
    except (TypeError, KeyError, OverflowError):
        return None
