"""Connecting the processor to OpenTelemetry's provider, an existing one or a new one."""

from __future__ import annotations

import threading
from weakref import WeakSet

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from agl_stream.producers.otel.processor import RolloutSpanProcessor

_attached: WeakSet[TracerProvider] = WeakSet()
_lock = threading.Lock()


def attach(provider: TracerProvider | None = None) -> TracerProvider:
    """Write spans of active rollouts from ``provider``, else from the global one, else from a new global one.

    A second call for the same provider changes nothing. The provider's other processors go on as before.
    """
    with _lock:
        if provider is None:
            found = trace.get_tracer_provider()
            if isinstance(found, TracerProvider):
                provider = found
            else:
                provider = TracerProvider()
                trace.set_tracer_provider(provider)
        if provider not in _attached:
            provider.add_span_processor(RolloutSpanProcessor())
            _attached.add(provider)
        return provider
