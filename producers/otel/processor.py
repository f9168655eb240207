"""The span processor: what starts inside a rollout is written when it ends."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from weakref import WeakValueDictionary

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from agl_stream.errors import AglStreamError
from agl_stream.producers import semconv
from agl_stream.producers.context import current
from agl_stream.producers.otel.convert import address_of, event_of
from agl_stream.producers.spans import CLOCK, SpanWriter

log = logging.getLogger("agl_stream.otel")


class RolloutSpanProcessor(SpanProcessor):
    """Writes spans through the rollout that was active when they started, so that the rollout's own flush covers
    them; many rollouts at once are kept apart. Spans that start outside any rollout are left alone.

    Never raises and never blocks the ending thread beyond the producer's back-pressure; what could not be written is
    told by the rollout's next flush.
    """

    def __init__(self) -> None:
        self._writers: WeakValueDictionary[tuple[str, str], SpanWriter] = WeakValueDictionary()
        self._lock = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        active = current()
        if active is None:
            return
        # the span may end in a thread or task that knows of no rollout: it carries its own address
        span.set_attribute(semconv.ROLLOUT_ID, active.rollout_id)
        span.set_attribute(semconv.ATTEMPT_ID, active.attempt_id)
        span.set_attribute(semconv.SEQUENCE_ID, CLOCK.tick())
        with self._lock:
            self._writers[active.rollout_id, active.attempt_id] = active.writer

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        address = address_of(span)
        if address is None or context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            writer = self._writers.get(address)
        if writer is None:
            log.warning("span %s ended after its rollout %s: not written", span.name, address[0])
            return
        try:
            writer.write(event_of(span, *address))
        except Exception as error:  # noqa: BLE001 - it would come out of the agent's own code that ends the span
            log.error("span %s of %s was not written: %s", span.name, address[0], error)
            writer.lost(f"span {span.name}: {error}")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until the log has acknowledged what ended so far; False when it has not, or a span was lost."""
        deadline = time.monotonic() + timeout_millis / 1000
        with self._lock:
            writers: list[Any] = list(self._writers.values())
        try:
            for writer in writers:
                writer.flush(max(deadline - time.monotonic(), 0.0))
        except (AglStreamError, TimeoutError) as error:
            log.error("%s", error)
            return False
        return True
