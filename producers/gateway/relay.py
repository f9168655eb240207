"""One recorded call from end to end: upstream, back to the client, onto the log before the answer ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from agl_stream.producers.gateway import call_span
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


class ClientGone(Exception):
    """The client closed its connection while an answer was being written to it."""


class Relay:
    """Relays calls to one upstream and records them with one recorder.

    Every outcome leaves one span (one for each choice): an answer, an error of the upstream (passed on as it is), an
    upstream that is away, a client that hung up.
    """

    def __init__(self, upstream: Upstream, recorder: Recorder) -> None:
        self._upstream = upstream
        self._recorder = recorder

    async def relay(self, call: Call, request: web.Request) -> web.StreamResponse:
        """Answer the client's request. Raises Refusal where no answer has begun."""
        outcome = Outcome()
        try:
            if call.stream:
                return await self._stream(call, request, outcome)
            answer = await self._ask(call, request)
            return await self._give(call, answer, outcome)
        except Refusal as refusal:
            if not outcome.recorded:
                outcome.recorded = True
                await self._recorder.record([_failed(call, f"{refusal.code}: {refusal.message}")])
            raise
        except asyncio.CancelledError:
            if not outcome.recorded:
                self._recorder.record_later([_failed(call, _why_cancelled(request))])
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
            spans = self._answered(call, response, answer.headers)
        outcome.recorded = True
        await self._recorder.record(spans)
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
            await sent.prepare(request)
            failure = await copy.run(source, self._upstream)
        except (asyncio.CancelledError, ClientGone) as gone:
            why = None if whole.finished else _why_cancelled(request)
            outcome.recorded = True
            self._recorder.record_later(self._answered(call, whole.response(), source.headers, failure=why))
            if isinstance(gone, ClientGone):
                return sent
            raise
        attributes = {}
        if copy.first_chunk_us is not None:
            attributes["agentlightning.first_chunk_us"] = copy.first_chunk_us - call.started_at_us
        outcome.recorded = True
        spans = self._answered(call, whole.response(), source.headers, failure=failure, attributes=attributes)
        end = copy.held
        try:
            await self._recorder.record(spans)
        except Refusal as refusal:
            end = [refusal.event()]
        else:
            if failure is not None and whole.error is None:
                end.append(Refusal(502, "upstream_error", failure).event())
        try:
            await sent.write(b"".join(end))
            await sent.write_eof()
        except ConnectionError:
            # gone between the last chunk and the end: the call is whole and recorded
            pass
        return sent

    def _answered(
        self,
        call: Call,
        response: dict[str, Any],
        headers: Mapping[str, str],
        *,
        failure: str | None = None,
        attributes: dict[str, Any] | None = None,
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
        )


class Outcome:
    """Whether a call's spans have been handed to the recorder: there must be one record, whatever goes wrong."""

    recorded = False


class StreamCopy:
    """Copies a stream's events to the client as they come, and into ``whole``.

    From the event that finishes the last choice on they are ``held``: whoever has seen the end of an answer may end
    the attempt, and the span must be on the log by then.
    """

    def __init__(self, sent: web.StreamResponse, whole: StreamAssembler) -> None:
        self._sent = sent
        self._whole = whole
        self.held: list[bytes] = []
        self.first_chunk_us: int | None = None

    async def run(self, source: aiohttp.ClientResponse, upstream: Upstream) -> str | None:
        """Copy to the stream's end; returns why it did not end well, or None. Raises ClientGone."""
        splitter = EventSplitter()
        try:
            async for piece in source.content.iter_any():
                ready = self._take(splitter.feed(piece))
                if ready:
                    await self._send(ready)
        except aiohttp.SocketTimeoutError:
            return upstream.too_silent().message
        except (*BROKEN, EventTooLong) as error:
            return f"the upstream's stream broke off ({type(error).__name__}: {error})"
        if rest := splitter.rest():
            self.held.extend(self._take([rest]))
        if self._whole.error is not None:
            return "the upstream ended the stream with an error"
        return None if self._whole.finished else "the upstream's stream ended before its choices did"

    def _take(self, events: list[bytes]) -> list[bytes]:
        """Take note of events; returns those that may go out."""
        ready: list[bytes] = []
        for event in events:
            data = data_of(event)
            done = data == DONE
            if data and not done:
                self.first_chunk_us = self.first_chunk_us or now_us()
                self._whole.add(data)
            if self.held or done or self._whole.finished:
                self.held.append(event)
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
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        # NaN and infinities, which some servers send for logprobs, are read by the lenient parser only
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return parsed if isinstance(parsed, dict) else None


def _version(value: Any) -> int | None:
    try:
        return int(value) if value is not None and 0 <= int(value) < 2**31 else None
    except (TypeError, ValueError):
        return None
