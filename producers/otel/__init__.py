"""OpenTelemetry spans of an agent onto the log, with typed fields for what the system itself reads.

``attach()`` makes every span that starts inside an active rollout a SpanRecorded event. Where spans are made
in another process, ``RolloutSpanExporter`` takes their rollout from span or resource attributes.

A model call that is instrumented *and* goes through the gateway leaves two spans with the same
``gen_ai.response.id``; the gateway's has the token ids.
"""

from agl_stream.producers.otel.attach import attach
from agl_stream.producers.otel.exporter import RolloutSpanExporter
from agl_stream.producers.otel.processor import RolloutSpanProcessor

__all__ = ["RolloutSpanExporter", "RolloutSpanProcessor", "attach"]
