"""An OpenTelemetry span as a SpanRecorded event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from agl_stream.producers import json_text, semconv
from agl_stream.producers.attributes import flatten, utf8
from agl_stream.producers.otel.bodies import finish_reasons, request_body, response_body
from agl_stream.producers.otel.kind import kind_of
from agl_stream.producers.otel.tokens import token_fields
from agl_stream.schemas.events import Event

_OWN_MARKS = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, semconv.SEQUENCE_ID)


def address_of(span: ReadableSpan) -> tuple[str, str] | None:
    """(rollout_id, attempt_id) from the span's attributes, else its resource's; None when one is missing."""
    for attributes in (span.attributes or {}, span.resource.attributes):
        rollout_id, attempt_id = attributes.get(semconv.ROLLOUT_ID), attributes.get(semconv.ATTEMPT_ID)
        if rollout_id and attempt_id:
            return str(rollout_id), str(attempt_id)
    return None


def event_of(span: ReadableSpan, rollout_id: str, attempt_id: str) -> Event:
    """The event. ``sequence_id`` is the one stamped at the span's start, else made from its start time. Characters
    without a UTF-8 form, which OpenTelemetry lets pass, become question marks."""
    context = span.get_span_context()
    assert context is not None, "an ended span has a context"
    attributes = {name: value for name, value in (span.attributes or {}).items() if name not in _OWN_MARKS}
    started_ns = span.start_time or 0
    stamped = (span.attributes or {}).get(semconv.SEQUENCE_ID)
    event = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "span_id": f"{context.span_id:016x}",
        "trace_id": f"{context.trace_id:032x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "sequence_id": stamped if isinstance(stamped, int) else sequence_of(started_ns),
        "name": span.name,
        "status": span.status.status_code.name.lower(),
        "status_description": span.status.description,
        "started_at_us": started_ns // 1000,
        "ended_at_us": None if span.end_time is None else span.end_time // 1000,
        **typed_fields(span.name, attributes),
        "attributes": _json(attributes),
        "events": json_text.dumps([_event(event) for event in span.events]),
        "links": json_text.dumps([_link(link) for link in span.links]),
        "resource": json_text.dumps(
            {"attributes": flatten(span.resource.attributes), "schema_url": span.resource.schema_url}
        ),
    }
    return {name: utf8(value) if isinstance(value, str) else value for name, value in event.items()}


def typed_fields(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the system reads itself: kind, and the fields of a model call or a reward."""
    kind = kind_of(name, attributes)
    fields: dict[str, Any] = {"kind": kind}
    if kind == "reward":
        value = attributes.get(f"{semconv.REWARD}.0.value", attributes.get("reward"))
        fields["reward"] = float(value) if isinstance(value, int | float) else None
    if kind == "llm_call":
        request, response = request_body(attributes), response_body(attributes)
        reasons = finish_reasons(attributes)
        model = attributes.get(semconv.RESPONSE_MODEL) or attributes.get(semconv.REQUEST_MODEL)
        fields |= token_fields(attributes)
        fields["model"] = None if model is None else str(model)
        fields["finish_reason"] = reasons[0] if reasons else None
        fields["request"] = None if request is None else json_text.dumps(request)
        fields["response"] = None if response is None else json_text.dumps(response)
    return fields


def sequence_of(started_ns: int) -> int:
    """A hybrid clock value for a span whose start was not stamped: milliseconds above, their fraction below."""
    milliseconds, fraction = divmod(started_ns, 1_000_000)
    return (milliseconds << 16) | (fraction << 16) // 1_000_000


def _event(event: Any) -> dict[str, Any]:
    return {"name": event.name, "timestamp": event.timestamp / 1e9, "attributes": flatten(event.attributes or {})}


def _link(link: Any) -> dict[str, Any]:
    context = {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}
    return {"context": context, "attributes": flatten(link.attributes or {})}


def _json(attributes: Mapping[str, Any]) -> str:
    return json_text.dumps(flatten(attributes))
