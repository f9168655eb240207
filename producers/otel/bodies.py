"""Request and response bodies of a model call, put together from span attributes in the shape of the chat API.

Read are the GenAI conventions as of 1.37 and later (``gen_ai.input.messages``, JSON with parts), the older indexed ones
(``gen_ai.prompt.0.content``) and OpenInference (``llm.input_messages.0.message.content``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agl_stream.producers import json_text, semconv

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


def request_body(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request, or None where no messages were recorded."""
    messages = (
        _from_parts(attributes.get("gen_ai.input.messages"))
        or _indexed(attributes, "gen_ai.prompt")
        or _indexed(attributes, "llm.input_messages", within="message")
    )
    if not messages:
        return None
    system = _from_parts(attributes.get("gen_ai.system_instructions"), role="system")
    body: dict[str, Any] = {"model": attributes.get(semconv.REQUEST_MODEL), "messages": [*system, *messages]}
    for name in _SAMPLING:
        if (value := attributes.get(f"gen_ai.request.{name}")) is not None:
            body[name] = value
    tools = _indexed(attributes, "llm.request.functions")
    if tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return body


def response_body(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The response, or None where none was recorded."""
    messages = (
        _from_parts(attributes.get("gen_ai.output.messages"))
        or _indexed(attributes, "gen_ai.completion")
        or _indexed(attributes, "llm.output_messages", within="message")
    )
    if not messages:
        return None
    reasons = finish_reasons(attributes)
    choices = []
    for index, message in enumerate(messages):
        reason = message.pop("finish_reason", None) or (reasons[index] if index < len(reasons) else None)
        choices.append({"index": index, "message": {"role": "assistant", **message}, "finish_reason": reason})
    return {
        "id": attributes.get(semconv.RESPONSE_ID),
        "model": attributes.get(semconv.RESPONSE_MODEL),
        "choices": choices,
    }


def finish_reasons(attributes: Mapping[str, Any]) -> list[str]:
    """Finish reason of each choice."""
    given = attributes.get("gen_ai.response.finish_reasons")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list | tuple):
        return [str(reason) for reason in given]
    first = attributes.get("gen_ai.completion.0.finish_reason") or attributes.get("llm.response.finish_reason")
    return [str(first)] if first else []


def _from_parts(value: Any, role: str | None = None) -> list[dict[str, Any]]:
    """Messages with parts to messages of the chat API. ``role``: for a bare list of parts."""
    if isinstance(value, str):
        try:
            value = json_text.loads(value)
        except json_text.BadJson:
            return [{"role": role, "content": value}] if role else []
    if not isinstance(value, list | tuple):
        return []
    if role is not None:
        value = [{"role": role, "parts": value}]
    messages: list[dict[str, Any]] = []
    for message in value:
        if isinstance(message, Mapping):
            messages.extend(_chat_messages(message))
    return messages


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = [part for part in message.get("parts") or () if isinstance(part, Mapping)]
    texts = [str(part.get("content", "")) for part in parts if part.get("type") == "text"]
    calls = [_tool_call(part) for part in parts if part.get("type") == "tool_call"]
    results = [
        {"role": "tool", "tool_call_id": part.get("id"), "content": _text(part.get("response", part.get("result")))}
        for part in parts
        if part.get("type") == "tool_call_response"
    ]
    plain: dict[str, Any] = {
        "role": message.get("role"),
        "content": "".join(texts) if texts else message.get("content"),
    }
    if calls:
        plain["tool_calls"] = calls
    if reason := message.get("finish_reason"):
        plain["finish_reason"] = reason
    return results if results and not texts and not calls else [plain, *results]


def _tool_call(part: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": part.get("name"), "arguments": _text(part.get("arguments"))}
    return {"id": part.get("id"), "type": "function", "function": function}


def _indexed(attributes: Mapping[str, Any], prefix: str, within: str = "") -> list[dict[str, Any]]:
    """Messages from ``<prefix>.<index>[.<within>].<key>``, their tool calls from ``tool_calls.<index>...``."""
    pattern = re.compile(re.escape(prefix) + r"\.(\d{1,6})\." + (re.escape(within) + r"\." if within else "") + r"(.+)")
    messages: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for name, value in attributes.items():
        if (match := pattern.fullmatch(name)) is None:
            continue
        index, key = int(match.group(1)), match.group(2)
        messages.setdefault(index, {})
        if (call := re.fullmatch(r"tool_calls\.(\d{1,6})\.(.+)", key)) is not None:
            field = call.group(2).rsplit(".", 1)[-1]
            calls.setdefault(index, {}).setdefault(int(call.group(1)), {})[field] = value
        else:
            messages[index][key] = value
    for index, made in calls.items():
        messages[index]["tool_calls"] = [_tool_call(made[number]) for number in sorted(made)]
    return [messages[index] for index in sorted(messages)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text.dumps(value)
