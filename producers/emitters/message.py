"""Messages: free text for people who read the rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_stream.producers import semconv
from agl_stream.producers.emitters.emit import emit, point
from agl_stream.schemas.events import Event


def emit_message(message: str, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> Event:
    """Emit a message span; TypeError when ``message`` is no string."""
    if not isinstance(message, str):
        raise TypeError(f"a message must be a str, not {type(message).__name__}; emit_object takes other values")
    own = {semconv.MESSAGE_BODY: message}
    return emit(point(semconv.SPAN_MESSAGE, "message", own, attributes), propagate=propagate)
