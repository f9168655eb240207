"""Spans the runner writes for an agent: what it raised, and what it returned."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from agl_stream.consumers.runner.outcome import describe
from agl_stream.producers import json_text, semconv
from agl_stream.producers.attributes import of_exception
from agl_stream.schemas.events import Event
from agl_stream.types import Span, SpanCoreFields

_OURS = (str(Path(__file__).parent), str(Path(__file__).parents[2] / "agents"), "/agl_stream/")


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

    Raises TypeError or ValueError for attributes that have no JSON form and for times that are not finite. An
    OpenTelemetry span is known by its shape only and may raise anything.
    """
    # imported here: OpenTelemetry is heavy, and few agents return spans
    from agl_stream.producers.otel.convert import event_of, typed_fields

    if not isinstance(span, Span | SpanCoreFields):
        fields = event_of(span, "", "")
        del fields["sequence_id"]
        return fields
    fields: Event = {
        "name": span.name,
        "status": span.status.status_code.lower(),
        "status_description": span.status.description,
        **typed_fields(span.name, span.attributes),
        "attributes": json_text.dumps(span.attributes),
    }
    if span.start_time is not None:
        fields["started_at_us"] = _microseconds(span.start_time)
    if span.end_time is not None:
        fields["ended_at_us"] = _microseconds(span.end_time)
    if isinstance(span, Span):
        fields |= {
            "span_id": span.span_id,
            "trace_id": span.trace_id,
            "parent_id": span.parent_id,
            "events": json_text.dumps(span.events),
            "links": json_text.dumps(span.links),
            "resource": span.resource.model_dump_json(),
        }
    return fields


def _microseconds(seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"a span's time is {seconds}; give seconds since the epoch")
    return int(seconds * 1e6)


def _agents_frames(frames: TracebackType | None) -> TracebackType | None:
    """Without the leading frames of this package, which say nothing to an agent's author."""
    trimmed = frames
    while trimmed is not None and any(ours in trimmed.tb_frame.f_code.co_filename for ours in _OURS):
        trimmed = trimmed.tb_next
    return trimmed or frames
