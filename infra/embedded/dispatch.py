"""From a frame to its answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from . import handlers_admin, handlers_cluster, handlers_data, handlers_group, handlers_transaction
from .apis import (
    API_VERSIONS,
    APIS,
    Request,
    UnsupportedVersion,
    decode_request,
    encode_response,
    encode_unsupported_api_versions,
)
from .node import Caller, Node
from .wire import MalformedMessage, Message

logger = logging.getLogger(__name__)

Handler = Callable[[Node, Message, Caller], Any]
"""Returns the answer, None for no answer, or an awaitable of either."""

_MODULES = (handlers_data, handlers_cluster, handlers_admin, handlers_group, handlers_transaction)
HANDLERS: dict[int, Handler] = {
    api.key: next(getattr(module, api.name) for module in _MODULES if hasattr(module, api.name)) for api in APIS.values()
}


class Refused(Exception):
    """The connection cannot go on; the message says why in one line."""


def answer(node: Node, frame: memoryview, host: str) -> bytes | None | Awaitable[bytes | None]:
    """The response frame to a request frame, None when none is wanted, or an awaitable of either.

    Raises Refused for bytes that are no request of a known API and version.
    """
    try:
        request = decode_request(frame)
    except UnsupportedVersion as error:
        if error.api.key == API_VERSIONS:
            return encode_unsupported_api_versions(error.correlation_id)
        raise Refused(str(error)) from error
    except MalformedMessage as error:
        raise Refused(str(error)) from error
    caller = Caller(request.client_id, host, request.version)
    try:
        body = HANDLERS[request.api.key](node, request.body, caller)
    except Exception as error:
        raise _failure(request, error) from error
    if body is None or isinstance(body, dict):
        return None if body is None else encode_response(request, body)
    return _answer_later(request, body)


async def _answer_later(request: Request, pending: Awaitable[Message | None]) -> bytes | None:
    try:
        body = await pending
    except Exception as error:
        raise _failure(request, error) from error
    return None if body is None else encode_response(request, body)


def _failure(request: Request, error: Exception) -> Refused:
    """A handler failed: one line for the operator, the traceback only when debugging."""
    logger.debug("%s version %d failed", request.api.name, request.version, exc_info=error)
    return Refused(f"{request.api.name} version {request.version} failed: {type(error).__name__}: {error}")
