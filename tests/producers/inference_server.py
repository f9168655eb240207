"""A small OpenAI-compatible server for tests: it says what it is told, with token ids and logprobs as vLLM does.

What it does is chosen by the request's ``model``; ``calls`` keeps each request's body and headers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

PROMPT_IDS = [1, 2, 3, 100_000]
PIECES = ["Hel", "lo ", "wörld", "\n"]
TOOL_ARGUMENTS = ['{"expr', 'ession": "17', '+25"}']


def ids_of(index: int) -> list[int]:
    """Response ids of a choice, one for each piece."""
    return [1000 * (index + 1) + number for number in range(len(PIECES))]


def logprobs_of(index: int) -> list[float]:
    return [-0.5 - index - number / 8 for number in range(len(PIECES))]


class InferenceServer:
    """``async with InferenceServer() as server`` listens on ``server.url`` (ends with /v1)."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self.calls: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.failures_left = 0
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __aenter__(self) -> InferenceServer:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.calls.append((body, dict(request.headers)))
        self.called.set()
        model = body.get("model")
        try:
            if (early := await self._misbehave(request, model, body)) is not None:
                return early
            return await (self._stream(request, body) if body.get("stream") else self._whole(body))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _misbehave(self, request: web.Request, model: str, body: dict[str, Any]) -> web.StreamResponse | None:
        if self.failures_left:
            self.failures_left -= 1
            if model == "drops":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return web.json_response({"error": {"message": "loading"}}, status=503)
        if model == "hangs":
            await asyncio.sleep(60)
        if model == "limited":
            return web.json_response(
                {"error": {"message": "slow down", "type": "rate_limit"}}, status=429, headers={"Retry-After": "7"}
            )
        if model == "not-json":
            return web.Response(text="<html>", content_type="text/html")
        if model == "plain-openai" and (unknown := {"return_token_ids"} & body.keys()):
            message = f"Unrecognized request argument supplied: {unknown.pop()}"
            return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=400)
        return None

    async def _whole(self, body: dict[str, Any]) -> web.Response:
        await self.go_on.wait()
        choices = [_choice(body, index) for index in range(body.get("n") or 1)]
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "policy@3",
            "choices": choices,
            "usage": {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": 4, "total_tokens": 8},
        }
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = PROMPT_IDS
        text = json.dumps(answer)
        if body["model"] == "nan":
            text = text.replace("-0.5", "NaN", 1)
        headers = {"x-agl-resources-version": "3", "x-agl-resources-id": "rs-policy"}
        return web.Response(text=text, content_type="application/json", headers=headers)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sent = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await sent.prepare(request)
        model, count = body["model"], body.get("n") or 1
        for position, chunk in enumerate(_chunks(body, count)):
            if position == 2:
                if model == "breaks":
                    assert request.transport is not None
                    request.transport.abort()
                    return sent
                if model == "errors":
                    await sent.write(b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')
                    return sent
                await self.go_on.wait()
            data = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
            if model == "dribbles":
                for start in range(0, len(data), 7):
                    await sent.write(data[start : start + 7])
                    await asyncio.sleep(0)
            else:
                await sent.write(data)
        await sent.write(b"data: [DONE]\n\n")
        return sent

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((body, dict(request.headers)))
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [
            {
                "index": index,
                "text": "".join(PIECES),
                "finish_reason": "length",
                "token_ids": ids_of(index),
                "prompt_token_ids": [*PROMPT_IDS, index],
                "logprobs": {"tokens": PIECES, "token_logprobs": logprobs_of(index), "top_logprobs": None},
            }
            for index in range(len(prompts))
        ]
        return web.json_response(
            {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "policy@3", "choices": choices}
        )


def _choice(body: dict[str, Any], index: int) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": "".join(PIECES)},
        "finish_reason": "stop",
    }
    if body.get("tools"):
        function = {"name": "calculator", "arguments": "".join(TOOL_ARGUMENTS)}
        choice["message"] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{index}", "type": "function", "function": function}],
        }
        choice["finish_reason"] = "tool_calls"
    if body.get("return_token_ids"):
        choice["token_ids"] = ids_of(index)
    if body.get("logprobs"):
        choice["logprobs"] = {"content": _logprob_entries(index)}
    return choice


def _logprob_entries(index: int) -> list[dict[str, Any]]:
    return [
        {"token": piece, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for piece, logprob in zip(PIECES, logprobs_of(index), strict=True)
    ]


def _chunks(body: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The whole answer as chunks, choices interleaved; the last of each choice tells its finish reason."""
    with_ids, with_logprobs = body.get("return_token_ids"), body.get("logprobs")
    content = None if body.get("tools") else ""
    chunks = [_chunk(index, {"role": "assistant", "content": content}) for index in range(count)]
    if with_ids:
        chunks[0]["prompt_token_ids"] = PROMPT_IDS
    for number, piece in enumerate(PIECES):
        for index in range(count):
            delta: dict[str, Any] = {"content": piece}
            if body.get("tools"):
                delta = _tool_delta(index, number)
            chunk = _chunk(index, delta)
            choice = chunk["choices"][0]
            if with_ids:
                choice["token_ids"] = [ids_of(index)[number]]
            if with_logprobs:
                choice["logprobs"] = {"content": [_logprob_entries(index)[number]]}
            if number == len(PIECES) - 1:
                choice["finish_reason"] = "tool_calls" if body.get("tools") else "stop"
            chunks.append(chunk)
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": 4 * count, "total_tokens": 4 + 4 * count}
        chunks.append({**_chunk(0, {}), "choices": [], "usage": usage})
    return chunks


def _tool_delta(index: int, number: int) -> dict[str, Any]:
    if number == 0:
        function = {"name": "calculator", "arguments": ""}
        return {"tool_calls": [{"index": 0, "id": f"call_{index}", "type": "function", "function": function}]}
    return {"tool_calls": [{"index": 0, "function": {"arguments": TOOL_ARGUMENTS[number - 1]}}]}


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "policy@3",
        "resources_version": 4,
        "choices": [{"index": index, "delta": delta, "finish_reason": None}],
    }
