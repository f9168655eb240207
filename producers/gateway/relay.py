"""One recorded call from end to end: upstream, back to the client, onto the log before the answer ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

from agl_stream.producers.client_logging import client_logger
from agl_stream.producers.gateway import call_span, readable
from agl_stream.producers.gateway.assemble import StreamAssembler
from agl_stream.producers.gateway.call import Call
from agl_stream.producers.gateway.recorder import Recorder
from agl_stream.producers.gateway.replies import Refusal
from agl_stream.producers.gateway.sse import DONE, EventSplitter, EventTooLong, data_of
from agl_stream.producers.gateway.upstream import BROKEN, Answer, Upstream, passed_down
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.events import Event

_VERSION_HEADER = "x-agl-resources-version"
_RESOURCES_HEADER = "x-agl-resources-id"
_STOPPED = "gateway_stopped"

log = client_logger("gateway")


class ClientGone(Exception):
    """The client closed its connection while an answer was being written to it."""


class Relay:
    """Relays calls to one upstream and records them with one recorder.

    Every outcome leaves one span (one for each choice): an answer, an error of the upstream (passed on as it is), an
    upstream that is away, a client that hung up, a failure of the gateway itself.
    """

    def __init__(self, upstream: Upstream, recorder: Recorder) -> None:
        self._upstream = upstream
        self._recorder = recorder

    async def relay(self, call: Call, request: web.Request) -> web.StreamResponse:
        """Answer the client's request. Raises Refusal where no answer has begun; any other exception is the gateway's
        own failure, and is recorded as one too."""
        outcome = Outcome()
        try:
            if call.stream:
                return await self._stream(call, request, outcome)
            answer = await self._ask(call, request)
            return await self._give(call, answer, outcome)
        except Refusal as refusal:
            await self._record_failure(call, refusal, outcome)
            raise
        except aiohttp.ClientError as error:
            refusal = Refusal(502, "upstream_error", f"the upstream's answer broke off ({type(error).__name__})")
            await self._record_failure(call, refusal, outcome)
            raise refusal from None
        except asyncio.CancelledError:
            if not outcome.recorded:
                self._recorder.record_later([_failed(call, _why_cancelled(request))])
            raise
        except Exception as error:
            # its words may hold what belongs to nobody: they are for the log that the server writes
            await self._record_failure(call, _internal(error), outcome)
            raise

    async def _record_failure(self, call: Call, refusal: Refusal, outcome: Outcome) -> None:
        """Unless the call has its record."""
        if not outcome.recorded:
            outcome.recorded = True
            await self._recorder.record([_failed(call, f"{refusal.code}: {refusal.message}")])

    async def _record(self, spans: list[Event], outcome: Outcome) -> None:
        outcome.recorded = True
        try:
            await self._recorder.record(spans)
        except Exception as error:
            # a Refusal says that the log is away; after anything else a plainer span may still be taken
            outcome.recorded = isinstance(error, Refusal)
            raise

    async def _ask(self, call: Call, request: web.Request) -> Answer:
        """A whole answer; asked once more without an extra that the upstream does not know."""
        headers = self._upstream.headers_for(request.headers)
        body = call.upstream_body(self._upstream.refused())
        answer = await self._upstream.call("POST", call.route, headers, body)
        if answer.status >= 400 and self._upstream.learn(answer):
            body = call.upstream_body(self._upstream.refused())
            answer = await self._upstream.call("POST", call.route, headers, body)
        return answer

    async def _give(self, call: Call, answer: Answer, outcome: Outcome) -> web.Response:
        """Record a whole answer, then give it."""
        if answer.status >= 400:
            spans = [_failed(call, f"the upstream answers {answer.status}", answer.body, answer.status)]
        elif (response := _parsed(answer.body)) is None:
            spans = [_failed(call, "the upstream's answer is not a JSON object", answer.body, answer.status)]
        else:
            spans = self._answered(call, response, answer.headers, raw=answer.body)
        await self._record(spans, outcome)
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    async def _stream(self, call: Call, request: web.Request, outcome: Outcome) -> web.StreamResponse:
        headers = self._upstream.headers_for(request.headers)
        again = True
        while True:
            body = call.upstream_body(self._upstream.refused())
            async with self._upstream.stream("POST", call.route, headers, body) as source:
                if source.status < 400 and source.content_type == "text/event-stream":
                    return await self._pass_on(call, request, source, outcome)
                answer = await self._upstream.whole(source)
            if not (again and answer.status >= 400 and self._upstream.learn(answer)):
                return await self._give(call, answer, outcome)
            again = False

    async def _pass_on(
        self, call: Call, request: web.Request, source: aiohttp.ClientResponse, outcome: Outcome
    ) -> web.StreamResponse:
        """Pass a stream on, record it, and only then send its end."""
        sent = web.StreamResponse(status=source.status, headers=passed_down(source.headers))
        whole = StreamAssembler(chat=call.chat, choices=call.choices)
        copy = StreamCopy(sent, whole)
        try:
            await copy.begin(request)
            failure = await copy.run(source, self._upstream)
            spans = self._assembled(call, copy, source.headers, failure)
            await self._record(spans, outcome)
        except (asyncio.CancelledError, ClientGone) as gone:
            if not outcome.recorded:
                why = None if whole.finished else _why_cancelled(request)
                spans = self._assembled(call, copy, source.headers, why)
                outcome.recorded = True
                self._recorder.record_later(spans)
            if isinstance(gone, ClientGone):
                return sent
            raise
        except Exception as error:
            if not sent.prepared:
                raise
            # an answer that has begun can only be ended: as one that broke off, and with a record all the same
            end = await self._broken(call, error, outcome)
        else:
            end = bytes(copy.held)
            if failure is not None and whole.error is None:
                end += Refusal(502, "upstream_error", failure).event()
        try:
            await sent.write(end)
            await sent.write_eof()
        except ConnectionError:
            # gone between the last chunk and the end: the call is whole and recorded
            pass
        return sent

    async def _broken(self, call: Call, error: Exception, outcome: Outcome) -> bytes:
        """The last event of a stream that the gateway itself could not go on with."""
        if isinstance(error, Refusal):
            return error.event()
        log.error("a streamed call to %s failed", call.route, exc_info=error)
        refusal = _internal(error)
        try:
            await self._record_failure(call, refusal, outcome)
        except Exception as not_recorded:
            if isinstance(not_recorded, Refusal):
                return not_recorded.event()
            log.error("nor could it be recorded", exc_info=not_recorded)
        return refusal.event()

    def _assembled(self, call: Call, copy: StreamCopy, headers: Mapping[str, str], failure: str | None) -> list[Event]:
        attributes: dict[str, Any] = {}
        if copy.first_chunk_us is not None:
            attributes["agentlightning.first_chunk_us"] = copy.first_chunk_us - call.started_at_us
        unreadable = len(copy.whole.unreadable)
        if unreadable:
            attributes["agentlightning.unreadable_chunks"] = unreadable
        response = copy.whole.response()
        return self._answered(
            call, response, headers, failure=failure, attributes=attributes, ids_unsure=unreadable > 0
        )

    def _answered(
        self,
        call: Call,
        response: dict[str, Any],
        headers: Mapping[str, str],
        *,
        failure: str | None = None,
        attributes: dict[str, Any] | None = None,
        ids_unsure: bool = False,
        raw: bytes | None = None,
    ) -> list[Event]:
        missing = call_span.NOT_GIVEN
        if failure is not None:
            missing = failure if failure in (call_span.HUNG_UP, _STOPPED) else call_span.CUT_SHORT
        elif "return_token_ids" in self._upstream.refused():
            missing = "upstream_refused"
        resources_id = headers.get(_RESOURCES_HEADER) or response.get("resources_id")
        version = headers.get(_VERSION_HEADER) or response.get("resources_version")
        return call_span.answered(
            call,
            response,
            resources_id=resources_id if isinstance(resources_id, str) else None,
            resources_version=_version(version),
            ended_at_us=now_us(),
            attributes=attributes,
            failure=failure,
            ids_missing=missing,
            ids_unsure=ids_unsure,
            raw=raw,
        )


class Outcome:
    """Whether a call's spans have been handed to the recorder: there must be one record, whatever goes wrong."""

    recorded = False


class StreamCopy:
    """Copies a stream's events to the client as they come, and into ``whole``.

    From the event that finishes the last choice on they are ``held``: whoever has seen the end of an answer may end
    the attempt, and the span must be on the log by then. What is copied counts against the largest answer there may be,
    so that neither ``held`` nor ``whole`` grows for as long as an upstream likes to talk.
    """

    def __init__(self, sent: web.StreamResponse, whole: StreamAssembler) -> None:
        self._sent = sent
        self.whole = whole
        self.held = bytearray()
        self.first_chunk_us: int | None = None

    async def begin(self, request: web.Request) -> None:
        """Send the headers. Raises ClientGone."""
        try:
            await self._sent.prepare(request)
        except ConnectionError:
            raise ClientGone from None

    async def run(self, source: aiohttp.ClientResponse, upstream: Upstream) -> str | None:
        """Copy to the stream's end; returns why it did not end well, or None. Raises ClientGone."""
        splitter, length = EventSplitter(), 0
        try:
            async for piece in source.content.iter_any():
                length += len(piece)
                if length > upstream.max_answer_bytes:
                    return upstream.too_large().message
                ready = self._take(splitter.feed(piece))
                if ready:
                    await self._send(ready)
        except aiohttp.SocketTimeoutError:
            return upstream.too_silent().message
        except (*BROKEN, EventTooLong) as error:
            return f"the upstream's stream broke off ({type(error).__name__}: {error})"
        if rest := splitter.rest():
            self.held += b"".join(self._take([rest]))
        if self.whole.error is not None:
            return "the upstream ended the stream with an error"
        return None if self.whole.finished else "the upstream's stream ended before its choices did"

    def _take(self, events: list[bytes]) -> list[bytes]:
        """Take note of events; returns those that may go out."""
        ready: list[bytes] = []
        for event in events:
            data = data_of(event)
            done = data == DONE
            if data and not done:
                self.first_chunk_us = self.first_chunk_us or now_us()
                self.whole.add(data)
            if self.held or done or self.whole.finished:
                self.held += event
            else:
                ready.append(event)
        return ready

    async def _send(self, events: list[bytes]) -> None:
        try:
            await self._sent.write(b"".join(events))
        except ConnectionError:
            raise ClientGone from None


def _failed(call: Call, description: str, body: bytes | None = None, status: int | None = None) -> Event:
    attributes = {} if status is None else {"http.response.status_code": status}
    return call_span.failed(call, description, ended_at_us=now_us(), response=body, attributes=attributes)


def _why_cancelled(request: web.Request) -> str:
    transport = request.transport
    return call_span.HUNG_UP if transport is None or transport.is_closing() else _STOPPED


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = readable.loads(body)
    except readable.Unreadable:
        return None
    return parsed if isinstance(parsed, dict) else None


def _version(value: Any) -> int | None:
    try:
        return int(value) if value is not None and 0 <= int(value) < 2**31 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _internal(error: Exception) -> Refusal:
    return Refusal(500, "internal", f"the gateway failed ({type(error).__name__}); its log says why")
