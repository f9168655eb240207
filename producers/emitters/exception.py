"""Exceptions: what an agent caught and wants seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_stream.producers import semconv
from agl_stream.producers.attributes import of_exception
from agl_stream.producers.emitters.emit import emit, point
from agl_stream.schemas.events import Event


def emit_exception(
    error: BaseException, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> Event:
    """Emit an exception span with type, message and stack trace; TypeError when ``error`` is no exception.

    The span's status stays ok: the agent has dealt with it. A failed attempt is told by the attempt's own status.
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"an exception is needed, not {type(error).__name__}")
    own = of_exception(error, escaped=True)
    return emit(point(semconv.SPAN_EXCEPTION, "exception", own, attributes), propagate=propagate)
