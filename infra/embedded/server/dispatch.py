"""From a frame to its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

from agl_stream.infra.embedded.protocol.apis import (
    API_VERSIONS,
    Request,
    UnknownApi,
    UnsupportedVersion,
    decode_request,
    encode_response,
    encode_unsupported_api_versions,
)
from agl_stream.infra.embedded.protocol.wire import MalformedMessage, Message
from agl_stream.infra.embedded.server.handlers import HANDLERS
from agl_stream.infra.embedded.server.node import Caller, Node, Unanswered
from agl_stream.infra.embedded.server.outgoing import Chunk, joined

logger = logging.getLogger(__name__)

_POLLS = ("fetch", "join_group", "sync_group")
"""What waits for others and not for the disk: a client asks again when it gets no answer."""


class Refused(Exception):
    """The connection cannot go on; the message says why in one line."""


class Reply(NamedTuple):
    """An answer, length prefix included, and for how long its client is not listened to afterwards.

    No chunks if the client wants no answer.
    """

    chunks: list[Chunk]
    mute_seconds: float = 0.0


class Pending:
    """A request whose answer takes time: `finish()` gives it when `future` is done."""

    __slots__ = ("_began", "_node", "_processing_seconds", "_request", "future")

    def __init__(self, node: Node, request: Request, future: asyncio.Future[Any], began: float, now: float) -> None:
        self._node = node
        self._request = request
        self._began = began
        self._processing_seconds = now - began
        self.future = future

    @property
    def is_poll(self) -> bool:
        return self._request.api.name in _POLLS

    def finish(self) -> Reply:
        """Raises Refused when the handler failed."""
        error = self.future.exception()
        if error is not None:
            raise _failure(self._request, error) from error
        return _reply(self._node, self._request, self.future.result(), self._began, self._processing_seconds)


def answer(node: Node, frame: memoryview, host: str) -> Reply | Pending:
    """The answer to a request frame, or the promise of it. `frame` is free again when this returns.

    Raises Refused for bytes that are no request of a known API and version.
    """
    began = time.perf_counter()
    try:
        request = decode_request(frame)
    except UnsupportedVersion as error:
        if error.api.key == API_VERSIONS:
            return Reply([encode_unsupported_api_versions(error.correlation_id)])
        raise Refused(str(error)) from error
    except (MalformedMessage, UnknownApi) as error:
        raise Refused(str(error)) from error
    caller = Caller(request.client_id, host, request.version, len(frame))
    try:
        body = HANDLERS[request.api.name](node, request.body, caller)
    except Exception as error:
        raise _failure(request, error) from error
    request.body = {}
    now = time.perf_counter()
    if isinstance(body, dict):
        return _reply(node, request, body, began, now - began)
    return Pending(node, request, asyncio.ensure_future(body), began, now)


def _reply(node: Node, request: Request, body: Message, began: float, processing_seconds: float) -> Reply:
    """Encode, with the throttling that the client has earned, and account for the request."""
    throttle_ms: int = body.get("throttle_time", 0)
    throttle_ms = max(throttle_ms, node.quotas.charge_time(request.client_id, processing_seconds))
    if throttle_ms:
        body["throttle_time"] = throttle_ms
        node.metrics.throttled(request, throttle_ms / 1000)
    if isinstance(body, Unanswered):
        size_bytes, parts = 0, []
    else:
        size_bytes, parts = encode_response(request, body)
    node.metrics.answered(request, size_bytes, time.perf_counter() - began)
    return Reply(joined(parts), throttle_ms / 1000)


def _failure(request: Request, error: BaseException) -> Refused:
    """A handler failed: one line for the operator, the traceback only when debugging."""
    logger.debug("%s version %d failed", request.api.name, request.version, exc_info=error)
    return Refused(f"{request.api.name} version {request.version} failed: {type(error).__name__}: {error}")
