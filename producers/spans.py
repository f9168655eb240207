"""Spans of one attempt onto the log: built from plain calls, ordered by a hybrid clock, acknowledged on flush."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agl_stream.producers import json_text, semconv
from agl_stream.producers.claim_check import ClaimCheck
from agl_stream.producers.context import current, opentelemetry_parent
from agl_stream.producers.delivery import Flight
from agl_stream.schemas.clock import HybridClock, now_us
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import derived, new_span_id
from agl_stream.schemas.tokens import pack_floats, pack_ids

if TYPE_CHECKING:
    from agl_stream.producers.event_producer import EventProducer

CLOCK = HybridClock()
"""The process's clock: all writers share it, so that ids within a process follow program order."""

_PAYLOAD_FIELDS = ("request", "response", "attributes")


class SpanWriter:
    """Writes the spans of one attempt. Thread-safe.

    ``write`` hands a span to the producer and returns; ``flush`` waits until the log has acknowledged every span
    written here, which must happen before the attempt's end is reported. Payloads above the inline limit go to the
    blob store.
    """

    def __init__(
        self, producer: EventProducer, rollout_id: str, attempt_id: str, *, claim_check: ClaimCheck | None = None
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.trace_id = trace_id_of(attempt_id)
        self._producer = producer
        self._claim_check = claim_check or ClaimCheck(producer.settings)
        self._flight = Flight()

    def write(self, fields: Event) -> Event:
        """Write a span given by its fields; what is missing (ids, parent, order, times) is filled in from here and
        now. Returns the event as written. Raises what ``EventProducer.send`` raises."""
        event = self._complete(fields)
        check_in(event, self._claim_check)
        self._flight.board()
        try:
            self._producer.send("spans", event, key=self.rollout_id, on_delivery=self._landed)
        except BaseException:
            self._flight.landed()
            raise
        return event

    def llm_call(
        self,
        *,
        request: Any,
        response: Any,
        model: str | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        response_token_ids: Sequence[int] | None = None,
        response_logprobs: Sequence[float] | None = None,
        finish_reason: str | None = None,
        resources_version: int | None = None,
        ids_missing: str | None = None,
        **fields: Any,
    ) -> Event:
        """A model call that did not go through the gateway. Bodies are JSON values in the shape of the API used."""
        has_ids = prompt_token_ids is not None and response_token_ids is not None
        return self.write(
            {
                "name": "chat",
                "kind": "llm_call",
                "status": "ok",
                "model": model,
                "request": json_text.dumps(request),
                "response": json_text.dumps(response),
                "prompt_token_ids": None if prompt_token_ids is None else pack_ids(prompt_token_ids),
                "response_token_ids": None if response_token_ids is None else pack_ids(response_token_ids),
                "response_logprobs": None if response_logprobs is None else pack_floats(response_logprobs),
                "finish_reason": finish_reason,
                "resources_version": resources_version,
                "ids_missing": None if has_ids else ids_missing or "not_given",
                **fields,
            }
        )

    def tool(self, name: str, *, input: Any = None, output: Any = None, **fields: Any) -> Event:
        """A tool call; input and output are JSON values."""
        attributes = {
            semconv.GENAI_OPERATION: "execute_tool",
            semconv.TOOL_NAME: name,
            "gen_ai.tool.call.arguments": json_text.dumps(input),
            "gen_ai.tool.call.result": json_text.dumps(output),
        }
        return self.write(
            {"name": name, "kind": "tool", "status": "ok", "attributes": json_text.dumps(attributes), **fields}
        )

    def reward(self, value: float | Mapping[str, float], *, primary_key: str | None = None, **fields: Any) -> Event:
        """A reward, as ``emit_reward``."""
        from agl_stream.producers.emitters.reward import reward_fields

        return self.write({**reward_fields(value, primary_key=primary_key), **fields})

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Block until the log has acknowledged all spans written here. Raises DeliveryFailed, TimeoutError."""
        if timeout_seconds is None:
            timeout_seconds = self._producer.settings.delivery_timeout_seconds + 10.0
        if not self._flight.wait(time.monotonic() + timeout_seconds):
            raise TimeoutError(
                f"{self._flight.pending} span(s) of {self.attempt_id} are not acknowledged after "
                f"{timeout_seconds:g} s; is the broker at AGL_STREAM_BOOTSTRAP_SERVERS up?"
            )
        self._flight.raise_failures()

    async def aflush(self, timeout_seconds: float | None = None) -> None:
        """As ``flush``, without blocking the event loop."""
        if self._flight.pending or self._flight.failed:
            await asyncio.to_thread(self.flush, timeout_seconds)

    def lost(self, why: str) -> None:
        """A span of this attempt could not be written: the next ``flush`` raises."""
        self._flight.board()
        self._flight.landed(why)

    def _landed(self, error: Any, _: Any) -> None:
        self._flight.landed(None if error is None else f"span of {self.attempt_id}: {error.str()}")

    def _complete(self, fields: Event) -> Event:
        event = {
            "span_id": new_span_id(),
            "sequence_id": CLOCK.tick(),
            **fields,
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
        }
        if not event.get("trace_id"):
            event["trace_id"], event["parent_id"] = self._place(event.get("parent_id"))
        if "started_at_us" not in event:
            event["started_at_us"] = now_us()
        if "ended_at_us" not in event:
            event["ended_at_us"] = max(now_us(), event["started_at_us"])
        return event

    def _place(self, parent_id: str | None) -> tuple[str, str | None]:
        """(trace, parent): as told, else below our open operation, else below OpenTelemetry's current span."""
        if parent_id is not None:
            return self.trace_id, parent_id
        active = current()
        if active is not None and active.attempt_id == self.attempt_id and active.parent_id is not None:
            return self.trace_id, active.parent_id
        return opentelemetry_parent() or (self.trace_id, None)


def trace_id_of(attempt_id: str) -> str:
    """The trace of an attempt's spans where OpenTelemetry has not set one: the same in every process."""
    return derived(32, "trace", attempt_id)


def payload_may_be_large(event: Event, claim_check: ClaimCheck) -> bool:
    """A quick look: False is certain, True is worth a call of ``check_in``."""
    # a character of text is at most four bytes, six where JSON escapes it
    return claim_check.too_large(6 * sum(len(text) for name in _PAYLOAD_FIELDS if (text := event.get(name))))


def check_in(event: Event, claim_check: ClaimCheck) -> None:
    """Move request, response and attributes to the blob store when they are above the inline limit together.

    Blocks on the store when they are.
    """
    if not payload_may_be_large(event, claim_check):
        return
    payload = {name: event[name] for name in _PAYLOAD_FIELDS if event.get(name)}
    if not claim_check.too_large(sum(len(text.encode("utf-8", "replace")) for text in payload.values())):
        return
    event["payload_ref"] = claim_check.keep(json_text.dumps(payload).encode("utf-8", "replace"))
    event.update({name: "{}" if name == "attributes" else None for name in payload})
