"""The gateway as a server: routes, addressing, limits, start and graceful stop."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from agl_stream.errors import PortInUse
from agl_stream.producers.client_logging import client_logger
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.gateway.access import allowed, check_binding
from agl_stream.producers.gateway.call import CHAT, COMPLETIONS, Call, parse_body
from agl_stream.producers.gateway.recorder import Recorder
from agl_stream.producers.gateway.relay import Relay
from agl_stream.producers.gateway.replies import Refusal
from agl_stream.producers.gateway.upstream import BROKEN, Upstream, passed_down
from agl_stream.producers.spans import CLOCK, trace_id_of
from agl_stream.settings import Settings

_ID = re.compile(r"[A-Za-z0-9._:~@-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_ADDRESSED = "/rollout/{rollout_id}/attempt/{attempt_id}/v1"
_HOW = "POST /rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1/chat/completions (or /v1/completions)"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = client_logger("gateway")


class Gateway:
    """One gateway in front of one upstream. ``start`` binds, ``stop`` drains; both on the running loop."""

    def __init__(self, settings: Settings, producer: EventProducer) -> None:
        self._settings = settings
        self._producer = producer
        self._upstream = Upstream(settings)
        self._recorder = Recorder(producer)
        self._relay = Relay(self._upstream, self._recorder)
        self._runner: web.AppRunner | None = None
        self._in_flight = 0
        self._calls = 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address; port 0 takes a free one. Raises SettingError for an open binding without
        a token, PortInUse, EngineUnreachable when the registry does not answer."""
        check_binding(host, self._settings.gateway_token)
        await asyncio.to_thread(self._producer.warm, "spans")
        await self._upstream.open()
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            # a client that hangs up cancels its call, and thereby the generation
            handler_cancellation=True,
            shutdown_timeout=self._settings.gateway_drain_seconds,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024).start()
        except OSError as error:
            await self.stop()
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"port {port} on {host} is taken by another process; choose one with --port") from None
            raise
        return self._runner.addresses[0][:2]

    async def stop(self) -> None:
        """Refuse new calls, wait ``gateway_drain_seconds`` for those in flight, then end them; every span is on the
        log, or has failed, when this returns."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._recorder.drain()
        await self._upstream.close()

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=self._settings.gateway_max_body_bytes)
        routes = app.router
        for route in (CHAT, COMPLETIONS):
            routes.add_post(f"{_ADDRESSED}/{route}", self._guarded(self._recorded(route)))
            routes.add_post(f"/v1/{route}", self._guarded(self._unrecorded(route)))
        routes.add_get(f"{_ADDRESSED}/models", self._guarded(self._models))
        routes.add_get("/v1/models", self._guarded(self._models))
        routes.add_get("/health", self._health)
        routes.add_route("*", "/{tail:.*}", self._guarded(_unknown))
        return app

    def _guarded(self, handler: Handler) -> Handler:
        """Checks the token; turns every failure into a JSON answer without inner details."""
        token = self._settings.gateway_token

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._in_flight += 1
            try:
                if token and not allowed(request.headers.get("Authorization"), token):
                    raise Refusal(
                        401, "unauthorized", "wrong or missing token: send AGL_STREAM_GATEWAY_TOKEN as the API key"
                    )
                return await handler(request)
            except Refusal as refusal:
                return refusal.response()
            except web.HTTPRequestEntityTooLarge:
                limit = self._settings.gateway_max_body_bytes
                message = f"the request body is larger than AGL_STREAM_GATEWAY_MAX_BODY_BYTES={limit:,}"
                return Refusal(413, "body_too_large", message).response()
            except Exception:
                # whatever it is, the client gets an answer, and the details belong in our log only
                log.exception("%s %s failed", request.method, request.path)
                return Refusal(500, "internal", "the gateway failed; its log says why").response()
            finally:
                self._in_flight -= 1

        return guarded

    def _recorded(self, route: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            rollout_id, attempt_id = (_checked_id(request, name) for name in ("rollout_id", "attempt_id"))
            if (clock := request.headers.get("x-agl-clock")) and clock.isdecimal() and len(clock) <= 20:
                CLOCK.witness(int(clock))
            # the order is the request's arrival, whatever the upstream takes
            sequence_id = CLOCK.tick()
            data = await request.read()
            body = parse_body(data)
            trace_id, parent_id = trace_id_of(attempt_id), None
            if match := _TRACEPARENT.fullmatch(request.headers.get("traceparent", "")):
                trace_id, parent_id = match.groups()
            self._calls += 1
            call = Call(route, rollout_id, attempt_id, data, body, sequence_id, trace_id, parent_id)
            return await self._relay.relay(call, request)

        return handle

    def _unrecorded(self, route: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not self._settings.gateway_allow_unrecorded:
                raise Refusal(
                    400,
                    "no_rollout",
                    f"the path names no rollout, so the call would be recorded for nobody; use {_HOW}, or set "
                    "AGL_STREAM_GATEWAY_ALLOW_UNRECORDED=true to pass such calls",
                )
            data = await request.read()
            headers = self._upstream.headers_for(request.headers)
            async with self._upstream.stream("POST", route, headers, data) as source:
                sent = web.StreamResponse(status=source.status, headers=passed_down(source.headers))
                await sent.prepare(request)
                try:
                    async for piece in source.content.iter_any():
                        await sent.write(piece)
                    await sent.write_eof()
                except BROKEN:
                    # an answer that has begun cannot be replaced by an error: it is cut off for the client as well
                    if request.transport is not None:
                        request.transport.abort()
                return sent

        return handle

    async def _models(self, request: web.Request) -> web.StreamResponse:
        answer = await self._upstream.call("GET", "models", self._upstream.headers_for(request.headers), None)
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    async def _health(self, _: web.Request) -> web.Response:
        body = {"status": "ok", "calls": self._calls, "spans": self._recorder.spans, "in_flight": self._in_flight}
        return web.Response(body=orjson.dumps(body), content_type="application/json")


def _checked_id(request: web.Request, name: str) -> str:
    value = request.match_info[name]
    if not _ID.fullmatch(value):
        raise Refusal(400, "bad_id", f"{name} in the path is no id (1 to 128 letters, digits, and . _ : ~ @ -)")
    return value


async def _unknown(request: web.Request) -> web.StreamResponse:
    raise Refusal(
        404,
        "unknown_route",
        f"there is no {request.method} {request.path[:200]} here; model calls go to {_HOW}. The base URL for a client "
        "is http://HOST:PORT/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1",
    )
