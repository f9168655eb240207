"""What a span is to the learning system, told from its attributes rather than from its name.

Instrumentations name spans as they like and change names between releases; attributes follow conventions:
OpenTelemetry GenAI (new and old), OpenInference, Traceloop, AgentOps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_stream.producers import semconv

_OWN_NAMES = {
    semconv.SPAN_REWARD: "reward",
    semconv.SPAN_ANNOTATION: "annotation",
    semconv.SPAN_MESSAGE: "message",
    semconv.SPAN_OBJECT: "object",
    semconv.SPAN_EXCEPTION: "exception",
    semconv.SPAN_OPERATION: "operation",
}
_OPERATIONS = {
    "chat": "llm_call",
    "text_completion": "llm_call",
    "generate_content": "llm_call",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "embeddings": "other",
}
_KIND_ATTRIBUTES = ("openinference.span.kind", "traceloop.span.kind", "agentops.span.kind")
_KINDS = {"llm": "llm_call", "tool": "tool", "agent": "agent", "chain": "operation", "workflow": "operation"}
_REQUEST_TYPES = {"chat": "llm_call", "completion": "llm_call"}
_CALL_MARKS = (
    "gen_ai.completion.0.role",
    "gen_ai.completion.0.content",
    "gen_ai.output.messages",
    "response_token_ids",
    "llm.hosted_vllm.response_token_ids",
)


def kind_of(name: str, attributes: Mapping[str, Any]) -> str:
    """A symbol of SpanKind."""
    if f"{semconv.REWARD}.0.value" in attributes:
        return "reward"
    if name in _OWN_NAMES:
        return _OWN_NAMES[name]
    if known := _OPERATIONS.get(str(attributes.get(semconv.GENAI_OPERATION, ""))):
        return known
    for attribute in _KIND_ATTRIBUTES:
        if known := _KINDS.get(str(attributes.get(attribute, "")).lower()):
            return known
    if known := _REQUEST_TYPES.get(str(attributes.get("llm.request.type", ""))):
        return known
    if semconv.TOOL_NAME in attributes or "tool.name" in attributes:
        return "tool"
    if any(mark in attributes for mark in _CALL_MARKS):
        return "llm_call"
    return "other"
