"""Refusals in the shape of the OpenAI API, so that every client shows their message."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from agl_stream.producers.attributes import utf8


class Refusal(Exception):
    """A call that is answered with an error. ``retry``: whether the same call may succeed later."""

    def __init__(self, status: int, code: str, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        # it may quote an upstream or a client, and must be written whatever they sent
        self.status, self.code, self.message, self.retry = status, code, utf8(message), retry

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}

    def response(self) -> web.Response:
        # the header is what the OpenAI clients obey; without it they repeat every 5xx twice
        headers = {"x-should-retry": "true" if self.retry else "false"}
        return web.Response(
            body=orjson.dumps(self.body()), status=self.status, content_type="application/json", headers=headers
        )

    def event(self) -> bytes:
        """The refusal as the last event of a stream that has begun."""
        return b"data: " + orjson.dumps(self.body()) + b"\n\n"
