"""The inference server behind the gateway: one connection pool, and patience while it is away."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from agl_stream.producers.client_logging import client_logger
from agl_stream.producers.gateway.replies import Refusal
from agl_stream.settings import Settings

# what a connection that breaks off raises: refused, reset, closed before or within an answer
BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
    *("content-length", "content-encoding"),
}
_NOT_PASSED_UP = frozenset(
    _HOP_BY_HOP | {"host", "accept-encoding", "expect", "cookie", "authorization", "traceparent", "tracestate"}
)
_USER_INFO = re.compile(r"//[^/]*@")
_NOT_PASSED_DOWN = frozenset(_HOP_BY_HOP | {"server", "date", "set-cookie"})

T = TypeVar("T", "Answer", aiohttp.ClientResponse)

log: logging.Logger = client_logger("gateway")


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Upstream:
    """An OpenAI-compatible server at ``settings.upstream_url``.

    A call is repeated while connections fail and while the answer is 503, with growing pauses, until
    ``upstream_patience_seconds`` have passed. All other answers are given as they are. A stream is repeated only
    until its headers are there: what follows may already be with the client.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        # a URL may hold a password, and messages go to clients, spans and logs
        self._shown_url = _USER_INFO.sub("//", settings.upstream_url)
        self.max_answer_bytes = settings.gateway_max_answer_bytes
        # extras this upstream answered 400 to, and when to try them again
        self._refused: dict[str, float] = {}

    async def open(self) -> None:
        """Make the connection pool; needs the running loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=5.0, sock_read=self._settings.upstream_timeout_seconds
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def refused(self) -> frozenset[str]:
        """Extras not to ask for, because the upstream does not know them."""
        if not self._refused:
            return frozenset()
        now = time.monotonic()
        self._refused = {name: until for name, until in self._refused.items() if until > now}
        return frozenset(self._refused)

    def learn(self, answer: Answer) -> bool:
        """Whether an error answer complains of an extra; it is left out for five minutes then."""
        if answer.status not in (400, 422):
            return False
        named = [name for name in ("return_token_ids", "logprobs") if name.encode() in answer.body]
        for name in named:
            if name not in self._refused:
                log.warning("the upstream does not take %s: calls are recorded without what it gives", name)
            self._refused[name] = time.monotonic() + 300.0
        return bool(named)

    def headers_for(self, given: Mapping[str, str]) -> dict[str, str]:
        """Headers of the upstream call. The client's key goes upstream only where it is not the gateway's own."""
        headers = {name: value for name, value in given.items() if name.lower() not in _NOT_PASSED_UP}
        headers["Accept-Encoding"] = "identity"
        if self._settings.upstream_api_key:
            headers["Authorization"] = f"Bearer {self._settings.upstream_api_key}"
        elif not self._settings.gateway_token and (key := given.get("Authorization")):
            headers["Authorization"] = key
        return headers

    async def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """A whole answer. Raises Refusal when the upstream cannot be reached, is silent for too long, or says more
        than ``gateway_max_answer_bytes``."""

        async def once() -> Answer:
            async with self._request(method, path, headers, body) as response:
                return await self.whole(response)

        return await self._persist(once)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose status and headers are there and whose body is still to come. Raises as ``call`` does;
        what breaks off within the body is the reader's."""

        async def once() -> aiohttp.ClientResponse:
            return await self._request(method, path, headers, body)

        response = await self._persist(once)
        try:
            yield response
        finally:
            # a body that is not at its end is not wanted any more: closing the connection stops the generation
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def whole(self, response: aiohttp.ClientResponse) -> Answer:
        """The rest of an answer, read to its end; Refusal when it is longer than ``max_answer_bytes``."""
        pieces, length = [], 0
        async for piece in response.content.iter_any():
            length += len(piece)
            if length > self.max_answer_bytes:
                raise self.too_large()
            pieces.append(piece)
        return Answer(response.status, passed_down(response.headers), b"".join(pieces))

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Any:
        assert self._session is not None, "open() first"
        return self._session.request(
            method,
            f"{self._settings.upstream_url.rstrip('/')}/{path}",
            headers=headers,
            data=body,
            allow_redirects=False,
        )

    async def _persist(self, once: Callable[[], Awaitable[T]]) -> T:
        """The first result of ``once`` that is no 503, or what the last try within the patience gave or raised."""
        deadline = time.monotonic() + self._settings.upstream_patience_seconds
        pause = 0.05
        while True:
            last = time.monotonic() + pause > deadline
            try:
                result = await once()
                if result.status != 503 or last:
                    return result
                if isinstance(result, aiohttp.ClientResponse):
                    result.release()
                failure = "it answers 503"
            except BROKEN as error:
                if isinstance(error, aiohttp.SocketTimeoutError) and not isinstance(
                    error, aiohttp.ConnectionTimeoutError
                ):
                    raise self.too_silent() from None
                failure = f"{type(error).__name__} {error}"
                if last:
                    raise self._unreachable(failure) from None
            log.warning("the upstream at %s: %s; trying again", self._shown_url, failure)
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(pause * 1.6, 1.0)

    def too_silent(self) -> Refusal:
        """What a call ends with when the upstream sends nothing for too long."""
        return Refusal(
            504,
            "upstream_timeout",
            f"the upstream sent nothing for {self._settings.upstream_timeout_seconds:g} s "
            "(AGL_STREAM_UPSTREAM_TIMEOUT_SECONDS)",
        )

    def too_large(self) -> Refusal:
        """What a call ends with when the upstream sends more than ``max_answer_bytes``."""
        return Refusal(
            502,
            "answer_too_large",
            f"the upstream's answer is longer than AGL_STREAM_GATEWAY_MAX_ANSWER_BYTES={self.max_answer_bytes:,}",
        )

    def _unreachable(self, failure: str) -> Refusal:
        return Refusal(
            502,
            "upstream_unreachable",
            f"the upstream at {self._shown_url} cannot be reached ({failure}) and the "
            f"{self._settings.upstream_patience_seconds:g} s of AGL_STREAM_UPSTREAM_PATIENCE_SECONDS are over; "
            "is AGL_STREAM_UPSTREAM_URL right, and the server up?",
        )


def passed_down(headers: Mapping[str, str]) -> dict[str, str]:
    """The upstream's headers that the client gets."""
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_DOWN}
