"""Agents that trace themselves: their OpenTelemetry spans are recorded without a line of theirs."""

from __future__ import annotations

import sys


def attach_where_traced() -> None:
    """Record the spans of the global tracer provider, if the process has set one of OpenTelemetry's SDK.

    Imports nothing that the agent has not, and sets no provider: an agent that does not trace pays for a look into a
    dictionary. Called before each attempt, since an agent may set its provider late.
    """
    if "opentelemetry.sdk.trace" not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        from agl_stream.producers.otel import attach

        attach(provider)
