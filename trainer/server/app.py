"""HTTP around the engine: /v1/chat/completions (plain and streamed), /v1/models, /health."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from agl_stream.trainer.server.engine import Engine, GenerationFailed, Piece, Unavailable
from agl_stream.trainer.server.protocol import (
    BadRequest,
    ChatRequest,
    Envelope,
    error_body,
    logprobs_of,
    parse_chat,
    usage_of,
)

log = logging.getLogger(__name__)

VERSION_HEADER = "x-agl-resources-version"
_MAX_BODY_BYTES = 8 * 1024 * 1024
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(engine: Engine, *, model: str, api_key: str = "") -> web.Application:
    """The application. ``model`` is the served name; with ``api_key`` callers must show it as a bearer token."""
    service = ChatService(engine, model)
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_openai, _authorised(api_key)])
    app.router.add_post("/v1/chat/completions", service.chat)
    app.router.add_get("/v1/models", service.models)
    app.router.add_get("/health", service.health)
    return app


class ChatService:
    """The handlers."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    async def health(self, request: web.Request) -> web.Response:
        """200 while the engine generates; 503 when its thread has died."""
        return web.json_response(
            {
                "status": "ok" if self._engine.alive else "failed",
                "model": self._model,
                "resources_version": self._engine.version,
                "in_flight": self._engine.in_flight,
            },
            status=200 if self._engine.alive else 503,
        )

    async def models(self, request: web.Request) -> web.Response:
        """The one model served."""
        entry = {
            "id": self._model,
            "object": "model",
            "created": 0,
            "owned_by": "agl-stream",
            "max_model_len": self._engine.max_model_tokens,
            "resources_version": self._engine.version,
        }
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One chat completion with ``n`` choices."""
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        asked = parse_chat(body, self._model)
        try:
            prompt = self._engine.prompt_ids(asked.messages)
        except ValueError as error:
            raise BadRequest(str(error), param="messages") from None
        max_tokens = self._length(asked, len(prompt))
        async with self._engine.admitted() as version:
            envelope = Envelope.new(self._model, version)
            if asked.stream:
                return await self._stream(request, asked, prompt, max_tokens, envelope)
            pieces = await asyncio.gather(*(self._whole(asked, prompt, max_tokens) for _ in range(asked.n)))
        choices = [self._choice(asked, index, piece) for index, piece in enumerate(pieces)]
        answer = envelope.wrap(
            "chat.completion", choices, usage=usage_of(len(prompt), sum(len(piece.tokens) for piece in pieces))
        )
        if asked.return_token_ids:
            answer["prompt_token_ids"] = prompt
        return web.json_response(answer, headers={VERSION_HEADER: str(envelope.resources_version)})

    def _length(self, asked: ChatRequest, prompt_tokens: int) -> int:
        room = self._engine.max_model_tokens - prompt_tokens
        wanted = asked.max_tokens if asked.max_tokens is not None else max(room, 1)
        if wanted > room:
            raise BadRequest(
                f"this model's maximum context length is {self._engine.max_model_tokens} tokens; the messages take "
                f"{prompt_tokens} and max_tokens asks for {wanted}",
                param="messages",
                code="context_length_exceeded",
            )
        return wanted

    async def _whole(self, asked: ChatRequest, prompt: list[int], max_tokens: int) -> Piece:
        async for piece in self._engine.generate(prompt, max_tokens=max_tokens, temperature=asked.temperature):
            return piece
        raise GenerationFailed("the engine ended without an answer")

    def _choice(self, asked: ChatRequest, index: int, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": self._engine.text_of(piece.tokens), "refusal": None},
            "finish_reason": piece.finish_reason,
            "logprobs": self._logprobs(asked, piece),
        }
        if asked.return_token_ids:
            choice["token_ids"] = piece.tokens
        return choice

    def _logprobs(self, asked: ChatRequest, piece: Piece) -> dict[str, Any] | None:
        return logprobs_of(piece.tokens, piece.logprobs, self._engine.token_text) if asked.logprobs else None

    async def _stream(
        self, request: web.Request, asked: ChatRequest, prompt: list[int], max_tokens: int, envelope: Envelope
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                VERSION_HEADER: str(envelope.resources_version),
            }
        )
        await response.prepare(request)
        generated = 0
        try:
            async for index, delta, piece in self._deltas(asked, prompt, max_tokens):
                generated += len(piece.tokens)
                await _send(response, self._chunk(asked, envelope, prompt, index, delta, piece))
            if asked.include_usage:
                usage = usage_of(len(prompt), generated)
                await _send(response, envelope.wrap("chat.completion.chunk", [], usage=usage))
        except (Unavailable, GenerationFailed) as error:
            # the status line is out: the error travels as an event, and the missing [DONE] tells the rest
            await _send(response, error_body(str(error), kind="server_error"))
        else:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _chunk(
        self,
        asked: ChatRequest,
        envelope: Envelope,
        prompt: list[int],
        index: int,
        delta: dict[str, Any],
        piece: Piece,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": piece.finish_reason}
        choice["logprobs"] = self._logprobs(asked, piece) if piece.tokens else None
        chunk = envelope.wrap("chat.completion.chunk", [choice])
        if asked.return_token_ids:
            choice["token_ids"] = piece.tokens
            if "role" in delta:
                chunk["prompt_token_ids"] = prompt
        return chunk

    async def _deltas(
        self, asked: ChatRequest, prompt: list[int], max_tokens: int
    ) -> AsyncIterator[tuple[int, dict[str, Any], Piece]]:
        """(choice, delta, piece) of all choices as they come; a choice begins with its role."""
        queue: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

        async def produce(index: int) -> None:
            try:
                async for piece in self._engine.generate(
                    prompt, max_tokens=max_tokens, temperature=asked.temperature, streaming=True
                ):
                    queue.put_nowait((index, piece))
                queue.put_nowait((index, None))
            except (Unavailable, GenerationFailed) as error:
                queue.put_nowait((index, error))

        tasks = [asyncio.create_task(produce(index)) for index in range(asked.n)]
        tokens: list[list[int]] = [[] for _ in tasks]
        said = ["" for _ in tasks]
        try:
            for index in range(asked.n):
                yield index, {"role": "assistant", "content": ""}, Piece([], [], None)
            open_choices = asked.n
            while open_choices:
                index, piece = await queue.get()
                if piece is None:
                    open_choices -= 1
                elif isinstance(piece, BaseException):
                    raise piece
                else:
                    tokens[index] += piece.tokens
                    text = self._engine.text_of(tokens[index])
                    # half a character waits for its other half
                    if text.endswith(_REPLACEMENT) and piece.finish_reason is None:
                        text = said[index]
                    content, said[index] = text[len(said[index]) :], text
                    yield index, {"content": content}, piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@web.middleware
async def _errors_as_openai(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        kind = "not_found_error" if error.status == 404 else "invalid_request_error"
        body = error_body(str(error), kind=kind, param=error.param, code=error.code)
        return web.json_response(body, status=error.status)
    except Unavailable as error:
        body = error_body(str(error), kind="server_error", code="unavailable")
        return web.json_response(body, status=503, headers={"retry-after": "1"})
    except GenerationFailed as error:
        return web.json_response(error_body(str(error), kind="server_error"), status=500)
    except web.HTTPException as error:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return web.json_response(error_body(error.reason, kind=kind), status=error.status)


def _authorised(api_key: str) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if api_key and request.path != "/health":
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(shown.encode(), api_key.encode()):
                body = error_body("a valid bearer token is needed", kind="authentication_error")
                return web.json_response(body, status=401)
        return await handler(request)

    return check
