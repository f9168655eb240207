"""The end of an attempt onto the log: its spans first, then its status, each acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from agl_stream.consumers.runner.events import Claim, WorkerIdentity, attempt_event
from agl_stream.consumers.runner.outcome import Outcome, describe
from agl_stream.consumers.runner.spans import exception_fields, returned_span_fields
from agl_stream.errors import BufferFull, DeliveryFailed, EncodeError, EngineUnreachable, RecordTooLarge
from agl_stream.producers.emitters.reward import reward_fields
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.spans import SpanWriter
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.events import Event

logger = logging.getLogger(__name__)

_PAUSES_SECONDS = (0.1, 30.0)
_LOST = (DeliveryFailed, BufferFull, EngineUnreachable, TimeoutError)


async def report_end(
    outcome: Outcome,
    claim: Claim,
    worker: WorkerIdentity,
    writer: SpanWriter,
    producer: EventProducer,
    *,
    give_up: Callable[[], bool],
) -> None:
    """Return once the end is on the log, or ``give_up`` says that it will not be waited for.

    Whoever reads the end may take the attempt's spans for complete. So spans that are lost for good make a failed
    attempt (``spans_lost``) instead of a succeeded one with less in it, and spans that cannot be written at all one
    with a ``bad_result``. Nothing that the outcome holds keeps the end itself from being reported.
    """
    ended_at_us = now_us()
    try:
        outcome = _with_spans_written(outcome, claim, writer)
        await writer.aflush()
    except Exception as error:  # noqa: BLE001 - whatever befell the spans, the end is reported
        outcome = Outcome("failed", reason_code="spans_lost", detail=describe(error))
    fields: dict[str, Any] = {
        "reason_code": outcome.reason_code,
        "detail": outcome.detail,
        "reward": outcome.reward,
    }
    await _deliver(attempt_event(claim, worker, outcome.status, ended_at_us, **fields), producer, give_up)


def _with_spans_written(outcome: Outcome, claim: Claim, writer: SpanWriter) -> Outcome:
    """The outcome that remains. Raises what says that the log cannot be reached."""
    try:
        _write_spans(outcome, writer)
    except _LOST:
        raise
    except Exception as error:  # noqa: BLE001 - returned spans and exceptions are foreign objects: they may raise anything
        if outcome.error is None:
            return Outcome("failed", reason_code="bad_result", detail=describe(error))
        # why the attempt failed matters more than that its stack cannot be shown
        logger.warning("the exception of %s could not be written as a span: %s", claim.attempt_id, describe(error))
    return outcome


def _write_spans(outcome: Outcome, writer: SpanWriter) -> None:
    for span in outcome.spans:
        writer.write(returned_span_fields(span))
    if outcome.error is not None:
        writer.write(exception_fields(outcome.error))
    if outcome.reward is not None:
        writer.write(reward_fields(outcome.reward))


async def _deliver(event: Event, producer: EventProducer, give_up: Callable[[], bool]) -> None:
    """Tries for as long as the broker is away: a result is never dropped while somebody can wait for it. What cannot
    be encoded is reported without its detail, since trying again would not mend it."""
    pause, longest = _PAUSES_SECONDS
    while True:
        try:
            await producer.adeliver("attempts", event, key=event["rollout_id"])
            return
        except (EncodeError, RecordTooLarge) as error:
            logger.error("the end of %s cannot be written with its detail: %s", event["attempt_id"], describe(error))
            if event["detail"] is None:
                return
            event = {**event, "detail": None}
            continue
        except Exception as error:  # noqa: BLE001 - an unforeseen failure, too, is not worth an attempt
            if give_up():
                logger.error("the end of %s (%s) is not on the log: %s", event["attempt_id"], event["status"], error)
                return
            logger.warning("the end of %s is not on the log yet: %s", event["attempt_id"], error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest)
