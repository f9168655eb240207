"""Call spans onto the log, waited for."""

from __future__ import annotations

import asyncio

from agl_stream.errors import AglStreamError
from agl_stream.producers.claim_check import ClaimCheck
from agl_stream.producers.client_logging import client_logger
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.gateway.replies import Refusal
from agl_stream.producers.spans import check_in, payload_may_be_large
from agl_stream.schemas.events import Event

log = client_logger("gateway")


class Recorder:
    """Writes spans for the gateway's calls. ``spans`` counts the acknowledged ones."""

    def __init__(self, producer: EventProducer) -> None:
        self._producer = producer
        self._claim_check = ClaimCheck(producer.settings)
        self._background: set[asyncio.Task[None]] = set()
        self.spans = 0

    async def record(self, spans: list[Event]) -> None:
        """Return once the log has acknowledged all; Refusal when it does not. A caller that is cancelled meanwhile
        leaves the record to be completed."""
        await asyncio.shield(self._begin(spans))

    def record_later(self, spans: list[Event]) -> None:
        """Record for a caller who cannot wait; ``drain`` does."""
        # a failure is logged where it happens, and there is nobody left to tell
        self._begin(spans).add_done_callback(lambda task: task.cancelled() or task.exception())

    def _begin(self, spans: list[Event]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._record(spans))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _record(self, spans: list[Event]) -> None:
        try:
            for span in spans:
                if payload_may_be_large(span, self._claim_check):
                    await asyncio.to_thread(check_in, span, self._claim_check)
            if len(spans) == 1:
                await self._producer.adeliver("spans", spans[0], key=spans[0]["rollout_id"])
            else:
                await asyncio.gather(
                    *(self._producer.adeliver("spans", span, key=span["rollout_id"]) for span in spans)
                )
        except AglStreamError as error:
            log.error("a model call was not recorded: %s", error)
            raise Refusal(
                503, "not_recorded", f"the call was answered but could not be recorded: {error}", retry=True
            ) from None
        self.spans += len(spans)

    async def drain(self) -> None:
        """Wait for what ``record_later`` began."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
