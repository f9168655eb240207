"""Spans the runner writes for an agent: what it raised, and what it returned."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from agl_stream.consumers.runner.outcome import describe
from agl_stream.producers import json_text, semconv
from agl_stream.producers.attributes import of_exception
from agl_stream.schemas.events import Event
from agl_stream.types import Span, SpanCoreFields

_OURS = (str(Path(__file__).parent), str(Path(__file__).parents[2] / "agents"), "/agl_stream/")
_KINDS = {
    semconv.SPAN_ANNOTATION: "annotation",
    semconv.SPAN_MESSAGE: "message",
    semconv.SPAN_OBJECT: "object",
    semconv.SPAN_EXCEPTION: "exception",
    semconv.SPAN_OPERATION: "operation",
    semconv.SPAN_REWARD: "reward",
}
_REWARD_VALUE = f"{semconv.REWARD}.0.value"


def exception_fields(error: BaseException) -> Event:
    """Fields of the span of an exception that ended an attempt; the stack begins in the agent's own code."""
    attributes = of_exception(error.with_traceback(_agents_frames(error.__traceback__)), escaped=True)
    return {
        "name": semconv.SPAN_EXCEPTION,
        "kind": "exception",
        "status": "error",
        "status_description": describe(error),
        "attributes": json_text.dumps(attributes),
    }


def returned_span_fields(span: Any) -> Event:
    """Fields of a span that an agent returned. Rollout, attempt and order are the runner's to give.

    Raises TypeError or ValueError for attributes that have no JSON form.
    """
    if isinstance(span, SpanCoreFields):
        return _fields(span)
    if isinstance(span, Span):
        return {
            **_fields(span),
            "span_id": span.span_id,
            "trace_id": span.trace_id,
            "parent_id": span.parent_id,
            "events": json_text.dumps(span.events),
            "links": json_text.dumps(span.links),
            "resource": span.resource.model_dump_json(),
        }
    return _opentelemetry_fields(span)


def _fields(span: Span | SpanCoreFields) -> Event:
    fields: Event = {
        "name": span.name,
        "status": span.status.status_code.lower(),
        "status_description": span.status.description,
        "attributes": json_text.dumps(span.attributes),
        **_meaning(span.name, span.attributes),
    }
    if span.start_time is not None:
        fields["started_at_us"] = int(span.start_time * 1e6)
    if span.end_time is not None:
        fields["ended_at_us"] = int(span.end_time * 1e6)
    return fields


def _opentelemetry_fields(span: Any) -> Event:
    context, status = span.get_span_context(), span.status
    own = json.loads(span.to_json())
    fields: Event = {
        "name": span.name,
        "status": status.status_code.name.lower(),
        "status_description": status.description,
        "attributes": json_text.dumps(own.get("attributes") or {}),
        "events": json_text.dumps(own.get("events") or []),
        "links": json_text.dumps(own.get("links") or []),
        "resource": json_text.dumps(own.get("resource") or {}),
        "span_id": f"{context.span_id:016x}",
        "trace_id": f"{context.trace_id:032x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        **_meaning(span.name, own.get("attributes") or {}),
    }
    if span.start_time is not None:
        fields["started_at_us"] = span.start_time // 1000
    if span.end_time is not None:
        fields["ended_at_us"] = span.end_time // 1000
    return fields


def _meaning(name: str, attributes: dict[str, Any]) -> Event:
    """The typed fields the system reads: what the span is, and its reward. A reward may travel on an annotation."""
    reward = attributes.get(_REWARD_VALUE)
    if isinstance(reward, int | float):
        return {"kind": "reward", "reward": float(reward)}
    return {"kind": _KINDS.get(name, "other")}


def _agents_frames(frames: TracebackType | None) -> TracebackType | None:
    """Without the leading frames of this package, which say nothing to an agent's author."""
    trimmed = frames
    while trimmed is not None and any(ours in trimmed.tb_frame.f_code.co_filename for ours in _OURS):
        trimmed = trimmed.tb_next
    return trimmed or frames
