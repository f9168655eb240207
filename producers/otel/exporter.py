"""The span exporter: for processes that know their rollout only by attributes, and for batch processors."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agl_stream.producers.claim_check import ClaimCheck
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.otel.convert import address_of, event_of
from agl_stream.producers.spans import check_in

log = logging.getLogger("agl_stream.otel")


class RolloutSpanExporter(SpanExporter):
    """Writes the spans that carry ``agentlightning.rollout_id`` and ``.attempt_id`` as span or resource attributes.

    ``export`` returns once the log has acknowledged the batch. Spans without an address are skipped and counted in
    ``skipped``. Use either this or RolloutSpanProcessor on a provider, not both.
    """

    def __init__(self, producer: EventProducer) -> None:
        self._producer = producer
        self._claim_check = ClaimCheck(producer.settings)
        self.skipped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        events = []
        try:
            for span in spans:
                if (address := address_of(span)) is None:
                    self.skipped += 1
                    continue
                event = event_of(span, *address)
                check_in(event, self._claim_check)
                events.append((address[0], event))
            self._producer.deliver("spans", events)
        except Exception as error:  # noqa: BLE001 - one strange attribute must not end the processor's thread
            log.error("%d spans were not exported: %s", len(spans), error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """True: ``export`` itself waits."""
        return True

    def shutdown(self) -> None:
        """Leaves the producer open: it belongs to whoever made it."""
