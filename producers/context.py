"""The rollout that runs here: a context variable, so that each thread, task and callback finds its own.

A new thread starts without a rollout; ``contextvars.copy_context().run`` (or ``asyncio.to_thread``, which does it)
takes the rollout along.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agl_stream.producers.spans import SpanWriter


@dataclass(frozen=True)
class ActiveRollout:
    """Whose spans are written here, and by what. ``parent_id``: span_id of the operation that is open, if any."""

    rollout_id: str
    attempt_id: str
    writer: SpanWriter
    parent_id: str | None = None


_active: ContextVar[ActiveRollout | None] = ContextVar("agl_stream_active_rollout", default=None)


def current() -> ActiveRollout | None:
    """The active rollout, or None outside any."""
    return _active.get()


@contextmanager
def activate(writer: SpanWriter, *, parent_id: str | None = None) -> Iterator[ActiveRollout]:
    """Make ``writer``'s rollout the active one for the body and everything it calls or awaits."""
    active = ActiveRollout(writer.rollout_id, writer.attempt_id, writer, parent_id)
    token = _active.set(active)
    try:
        yield active
    finally:
        _active.reset(token)


def opentelemetry_parent() -> tuple[str, str] | None:
    """(trace_id, span_id) of OpenTelemetry's current span, where the process uses it; imports nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    found = trace.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None
