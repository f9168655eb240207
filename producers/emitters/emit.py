"""What all emitters share: a span's fields go to the active rollout, or back to the caller."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from agl_stream.producers import json_text
from agl_stream.producers.attributes import Attribute, flatten
from agl_stream.producers.context import current
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.events import Event

log = logging.getLogger("agl_stream.emitters")


def emit(fields: Event, *, propagate: bool = True) -> Event:
    """Write the span to the active rollout and return it whole; without one, or without ``propagate``, return the
    fields with times and empty ids. Raises what ``SpanWriter.write`` raises."""
    active = current() if propagate else None
    if active is not None:
        return active.writer.write(fields)
    if propagate:
        log.debug("%s emitted outside a rollout: returned, not written", fields["name"])
    at = now_us()
    return {
        "rollout_id": "",
        "attempt_id": "",
        "span_id": "",
        "trace_id": "",
        "parent_id": None,
        "sequence_id": 0,
        "started_at_us": at,
        "ended_at_us": at,
        **fields,
    }


def point(name: str, kind: str, own: Mapping[str, Attribute], more: Mapping[str, Any] | None, **typed: Any) -> Event:
    """Fields of a span without duration: its own attributes, then the caller's, which may not replace them."""
    extra = flatten(more or {})
    if taken := own.keys() & extra.keys():
        raise ValueError(f"attribute {sorted(taken)[0]} is set by the emitter itself; pass its value as the argument")
    return {"name": name, "kind": kind, "status": "ok", "attributes": json_text.dumps({**own, **extra}), **typed}
