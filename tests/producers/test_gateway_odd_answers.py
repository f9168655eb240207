"""What an upstream should not send, and the gateway's own failures: the client is answered, the call has its span."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.gateway import call_span
from agl_stream.producers.gateway.server import Gateway
from agl_stream.schemas.tokens import unpack_floats, unpack_ids
from agl_stream.settings import Settings
from tests.producers.conftest import Log

HANDLER = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT = 200_000
SENT_AT_MOST = 40_000_000
FINISH = b'data: {"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def gateway_before(
    url: str, settings: Settings, producer: EventProducer, **changes: Any
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """(gateway URL, a session to call it with)."""
    changes = {"upstream_url": url, "upstream_patience_seconds": 0.2} | changes
    gateway = Gateway(dataclasses.replace(settings, **changes), producer)
    host, port = await gateway.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            yield f"http://{host}:{port}", session
    finally:
        await gateway.stop()


@asynccontextmanager
async def running(
    handler: HANDLER, settings: Settings, producer: EventProducer, **changes: Any
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A gateway before an upstream that answers every call with ``handler``."""
    app = web.Application()
    app.router.add_post("/v1/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with gateway_before(url, settings, producer, **changes) as made:
            yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answering(
    data: bytes, settings: Settings, producer: EventProducer, **changes: Any
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A gateway before an upstream that writes ``data``, and nothing else, in answer to a request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with gateway_before(f"http://127.0.0.1:{port}/v1", settings, producer, **changes) as made:
            yield made


def whole(body: bytes) -> HANDLER:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return handle


def events(*sent: bytes) -> HANDLER:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"".join(sent))
        return answer

    return handle


async def ask(url: str, session: aiohttp.ClientSession, rollout_id: str, **body: Any) -> tuple[int, bytes]:
    path = f"{url}/rollout/{rollout_id}/attempt/at-1/v1/chat/completions"
    async with session.post(path, json={"model": "m", **body}) as answer:
        return answer.status, await answer.read()


async def one_span(log: Log, rollout_id: str) -> dict[str, Any]:
    spans = await asyncio.to_thread(log.events, "spans", rollout_id, 1)
    assert len(spans) == 1
    return spans[0]


def chunk(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **fields}]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("first", "again", "begins"),
    [
        (b"", chunk(delta={"content": "x" * 1000}), b"data: "),
        (FINISH, chunk(delta={"content": "x" * 1000}), FINISH),
        (FINISH, b": still here\n\n" * 100, FINISH),
        (b"", b": still here\n\n" * 100, b": still here"),
    ],
    ids=["chunks", "chunks after the end", "comments after the end", "comments"],
)
async def test_a_stream_without_end_is_ended(settings, producer, log, rollout_id, first, again, begins):
    sent = 0
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await answer.prepare(request)
            await answer.write(first)
            while sent < SENT_AT_MOST:
                await answer.write(again)
                sent += len(again)
            return answer
        finally:
            closed.set()

    async with running(endless, settings, producer, gateway_max_answer_bytes=LIMIT) as (url, session):
        status, body = await ask(url, session, rollout_id, stream=True)
        await asyncio.wait_for(closed.wait(), 20)
        span = await one_span(log, rollout_id)
    # the connection is closed, so that the generation stops: what is above the limit was in sockets' buffers
    assert sent < SENT_AT_MOST and len(body) < LIMIT + 1000
    assert status == 200 and body.startswith(begins)
    error = json.loads(body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: "))["error"]
    assert f"AGL_STREAM_GATEWAY_MAX_ANSWER_BYTES={LIMIT:,}" in error["message"]
    assert (error["type"], error["code"]) == ("server_error", "upstream_error")
    assert (span["status"], span["status_description"]) == ("error", error["message"])
    assert span["ids_missing"] == "stream_cut_short"


async def test_a_stream_up_to_the_limit_is_whole(settings, producer, log, rollout_id):
    sent = [chunk(delta={"content": "x" * 1000}), FINISH, DONE]
    limit = sum(map(len, sent))
    async with running(events(*sent), settings, producer, gateway_max_answer_bytes=limit) as (url, session):
        assert await ask(url, session, rollout_id, stream=True) == (200, b"".join(sent))
        assert (await one_span(log, rollout_id))["status"] == "ok"


def answer_with(content: str, **fields: str) -> bytes:
    """An answer with JSON texts at the places where they are odd."""
    rest = "".join(f', "{name}": {text}' for name, text in fields.items())
    return (
        '{"model": "m", "prompt_token_ids": [1, 2], "choices": [{"index": 0, "token_ids": [7], "message": '
        f'{{"role": "assistant", "content": {content}}}{rest}}}]}}'
    ).encode()


@pytest.mark.parametrize(
    "body",
    [
        answer_with('"hi \\ud83d"'),
        answer_with('"hi \\ud83d"', finish_reason='"\\ud83d"'),
        answer_with('"hi"', more="[" * 300 + "]" * 300),
        answer_with('"hi"', more="123456789012345678901234567890"),
    ],
    ids=["surrogate", "surrogate in the finish reason", "300 levels", "large integer"],
)
async def test_an_answer_that_is_hard_to_write_is_given_and_recorded(settings, producer, log, rollout_id, body):
    async with running(whole(body), settings, producer) as (url, session):
        assert await ask(url, session, rollout_id) == (200, body)
        span = await one_span(log, rollout_id)
    assert span["status"] == "ok" and unpack_ids(span["response_token_ids"]) == [7]
    expected = json.loads(body)
    del expected["prompt_token_ids"], expected["choices"][0]["token_ids"]
    stored = json.loads(span["response"])
    more = expected["choices"][0].get("more")
    if isinstance(more, int):
        # one of the two parsers reads it as a float
        assert stored["choices"][0].pop("more") == pytest.approx(expected["choices"][0].pop("more"))
    assert stored == expected


@pytest.mark.parametrize("levels", [900, 985, 1005, 1100, 100_000])
async def test_an_answer_that_is_nested_too_deep_is_given_and_recorded_as_it_came(
    settings, producer, log, rollout_id, levels
):
    body = answer_with('"hi"', more="[" * levels + "]" * levels)
    async with running(whole(body), settings, producer) as (url, session):
        assert await ask(url, session, rollout_id) == (200, body)
        span = await one_span(log, rollout_id)
    assert "[" * levels + "]" * levels in span["response"] and '"hi"' in span["response"]
    assert (span["ids_missing"] is None) is (span["status"] == "ok")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "\\ud83d", "id": "\\ud83d", "resources_id": "\\ud83d", "resources_version": Infinity, '
        b'"usage": {"prompt_tokens": 123456789012345678901234567890}, '
        b'"choices": [{"index": [[1]], "logprobs": {"content": [{"logprob": "\\ud83d"}]}}, {"index": NaN}]}',
        b'{"choices": 3}',
        b'{"choices": [{"token_ids": {"\\ud83d": 1}, "prompt_token_ids": "\\ud83d"}]}',
        b'\xff{"choices"',
    ],
)
async def test_oddities_in_any_field_are_recorded(settings, producer, log, rollout_id, body):
    async with running(whole(body), settings, producer) as (url, session):
        assert await ask(url, session, rollout_id) == (200, body)
        spans = await asyncio.to_thread(log.events, "spans", rollout_id, 2 if b"NaN" in body else 1)
    for span in spans:
        json.loads(span["attributes"])
        assert span["response"]


async def test_oddities_in_a_stream_are_passed_on_and_recorded(settings, producer, log, rollout_id):
    sent = [
        b'data: {"prompt_token_ids": [1], "choices": [{"index": 0, "delta": {"content": "a\\ud83d"}, '
        b'"token_ids": [7], "logprobs": {"content": [{"token": "a", "logprob": NaN}]}}]}\n\n',
        b'data: {"choices": [{"index": 0, "message": 3, "delta": {"role": "assistant"}}]}\n\n',
        FINISH,
        DONE,
    ]
    async with running(events(*sent), settings, producer) as (url, session):
        assert await ask(url, session, rollout_id, stream=True) == (200, b"".join(sent))
        span = await one_span(log, rollout_id)
    assert (span["status"], unpack_ids(span["response_token_ids"])) == ("ok", [7])
    (logprob,) = unpack_floats(span["response_logprobs"])
    assert logprob != logprob
    assert json.loads(span["response"])["choices"][0]["message"]["content"] == "a\ud83d!"


async def test_a_chunk_that_nobody_can_read_costs_the_token_ids(settings, producer, log, rollout_id):
    deep = b'data: {"x": ' + b"[" * 2000 + b"]" * 2000 + b"}\n\n"
    begun = (
        b'data: {"prompt_token_ids": [1], "choices": [{"index": 0, "token_ids": [7], "delta": {"content": "a"}}]}\n\n'
    )
    sent = [begun, b"data: {torn\n\n", deep, FINISH, DONE]
    async with running(events(*sent), settings, producer) as (url, session):
        assert await ask(url, session, rollout_id, stream=True) == (200, b"".join(sent))
        span = await one_span(log, rollout_id)
    # it may have held some, and a sequence with a hole is worse than none
    assert (span["status"], span["response_token_ids"], span["ids_missing"]) == ("ok", None, "malformed")
    stored = json.loads(span["response"])
    assert stored["unreadable_chunks"] == ["{torn", deep[6:-2].decode()]
    assert stored["choices"][0]["message"]["content"] == "a!"
    assert json.loads(span["attributes"])["agentlightning.unreadable_chunks"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"this is no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    ],
    ids=["no HTTP", "cut off"],
)
async def test_an_upstream_that_cannot_be_understood_is_recorded(settings, producer, log, rollout_id, data, stream):
    async with answering(data, settings, producer) as (url, session):
        status, body = await ask(url, session, rollout_id, stream=stream)
        span = await one_span(log, rollout_id)
    assert status == 502 and json.loads(body)["error"]["message"]
    assert span["status"] == "error" and span["ids_missing"] == "upstream_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_headers_that_are_no_text_do_not_stop_an_answer(settings, producer, log, rollout_id, stream):
    body = b"".join([FINISH, DONE]) if stream else answer_with('"hi"')
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nx-agl-resources-id: r\xffs\r\nConnection: close\r\n\r\n"
    async with answering(head + body, settings, producer) as (url, session):
        assert await ask(url, session, rollout_id, stream=stream) == (200, body)
        span = await one_span(log, rollout_id)
    assert (span["status"], span["resources_id"]) == ("ok", "r?s")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_of_the_gateway_is_recorded_and_told_without_details(
    settings, producer, log, rollout_id, stream, monkeypatch
):
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret")

    monkeypatch.setattr(call_span, "answered", failing)
    handler = events(chunk(delta={"content": "a"}), FINISH, DONE) if stream else whole(answer_with('"hi"'))
    async with running(handler, settings, producer) as (url, session):
        status, body = await ask(url, session, rollout_id, stream=stream)
        span = await one_span(log, rollout_id)
    assert status == (200 if stream else 500)
    error = json.loads(body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal")
    assert b"secret" not in body and b"Traceback" not in body and b"[DONE]" not in body
    assert span["status"] == "error" and span["status_description"].startswith("internal: ")
    assert "secret" not in str(span) and json.loads(span["request"])["model"] == "m"


@pytest.mark.parametrize(
    "data",
    [b'{"model": "\\ud83d"}', b'{"model": "\xed\xa0\xbd"}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"\xff"],
    ids=["surrogate", "surrogate as bytes", "deep", "no UTF-8"],
)
async def test_a_request_that_cannot_be_read_is_refused_in_json(settings, producer, rollout_id, data):
    async def never(request: web.Request) -> web.StreamResponse:
        pytest.fail("asked")

    async with running(never, settings, producer) as (url, session):
        path = f"{url}/rollout/{rollout_id}/attempt/at-1/v1/chat/completions"
        async with session.post(path, data=data) as answer:
            told = await answer.json()
    assert (answer.status, told["error"]["code"]) == (400, "bad_json")


async def test_request_headers_that_are_no_text_are_answered(settings, producer, log, rollout_id):
    async def call(url: str, *headers: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        path = f"/rollout/{rollout_id}/attempt/at-1/v1/chat/completions".encode()
        lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: 2", b"Connection: close", *headers]
        writer.write(b"\r\n".join([*lines, b"", b"{}"]))
        told = await reader.read()
        writer.close()
        return told.partition(b"\r\n")[0]

    handler = whole(answer_with('"hi"'))
    async with running(handler, settings, producer, gateway_token="secret") as (url, _):
        assert b" 401 " in await call(url, b"Authorization: Bearer \xff")
        clock = b"x-agl-clock: " + b"9" * 5000
        assert b" 200 " in await call(url, b"Authorization: Bearer secret", b"x-odd: \xff", clock)
        assert (await one_span(log, rollout_id))["status"] == "ok"


async def test_a_call_that_is_not_recorded_breaks_off_where_its_upstream_does(settings, producer):
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n: a\r\n"
    got = b""
    async with answering(data, settings, producer, gateway_allow_unrecorded=True) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        )
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                got += piece
        writer.close()
    # neither the end of an answer nor another answer within the first
    assert b"0\r\n\r\n" not in got and b"error" not in got


async def test_a_password_in_the_upstreams_address_is_not_told(settings, producer, log, rollout_id):
    address = "http://user:p%40ss@127.0.0.1:1/v1"
    async with gateway_before(address, settings, producer) as (url, session):
        status, body = await ask(url, session, rollout_id)
        span = await one_span(log, rollout_id)
    assert status == 502 and b"http://127.0.0.1:1/v1" in body
    assert b"p%40ss" not in body and "p%40ss" not in str(span)
