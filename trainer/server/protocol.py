"""The OpenAI chat protocol as this server speaks it: requests checked field by field, answers built. Pure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CHOICES = 128

# what the engine cannot do, and the values of each field that ask for nothing
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, -1, 0),
    "min_p": (None, 0, 0.0),
    "stop": (None, [], ""),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "top_logprobs": (None, 0),
    "seed": (None,),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "echo": (None, False),
    "audio": (None,),
    "modalities": (None, ["text"]),
}


class BadRequest(Exception):
    """A request that cannot be answered; becomes a 4xx with OpenAI's error object."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True)
class ChatRequest:
    """A checked request. ``max_tokens`` None: as many as the model's length leaves."""

    messages: list[dict[str, Any]]
    n: int
    max_tokens: int | None
    temperature: float
    stream: bool
    include_usage: bool
    logprobs: bool
    return_token_ids: bool


def parse_chat(body: Any, served_name: str) -> ChatRequest:
    """Checks the body of POST /v1/chat/completions; raises BadRequest naming the field."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    model = body.get("model")
    if model not in (None, served_name):
        raise BadRequest(
            f"model {model!r:.100} is not served here; this server has {served_name!r}",
            param="model",
            code="model_not_found",
            status=404,
        )
    for name, neutral in _NEUTRAL.items():
        if name in body and body[name] not in neutral:
            raise BadRequest(f"{name}={body[name]!r:.100} is not supported by this server; leave it out", param=name)
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param="stream_options")
    return ChatRequest(
        messages=_messages(body.get("messages")),
        n=_whole(body.get("n"), "n", 1, MAX_CHOICES),
        max_tokens=_whole(limits[0], "max_tokens", 1, 1 << 30) if limits else None,
        temperature=_temperature(body.get("temperature")),
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage"),
        logprobs=_flag(body, "logprobs"),
        return_token_ids=_flag(body, "return_token_ids"),
    )


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", param="messages")
    checked: list[dict[str, Any]] = []
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{where} must be an object with a role", param="messages")
        checked.append({**message, "content": _text(message.get("content"), where)})
    return checked


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        parts = [text for text in texts if isinstance(text, str)]
        if len(parts) == len(content):
            return "".join(parts)
    raise BadRequest(f"{where}.content must be text or a list of text parts", param="messages")


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if value is None:
        return least
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(f"{name}={value!r:.100} must be a whole number from {least} to {most}", param=name)
    return value


def _temperature(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 2.0:
        raise BadRequest(f"temperature={value!r:.100} must be a number from 0 to 2", param="temperature")
    return float(value)


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise BadRequest(f"{name}={value!r:.100} must be true or false", param=name)
    return bool(value)


def error_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Envelope:
    """What every answer or chunk of one request has in common."""

    id: str
    created: int
    model: str
    resources_version: int

    @classmethod
    def new(cls, model: str, resources_version: int) -> Envelope:
        return cls("chatcmpl-" + uuid.uuid4().hex, int(time.time()), model, resources_version)

    def wrap(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The answer (``chat.completion``) or one chunk of it (``chat.completion.chunk``)."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "resources_version": self.resources_version,
            "choices": choices,
            **more,
        }


def logprobs_of(tokens: Sequence[int], logprobs: Sequence[float], text_of: Callable[[int], str]) -> dict[str, Any]:
    """OpenAI's logprobs object for generated tokens; no alternatives are given."""
    content = []
    for token, logprob in zip(tokens, logprobs, strict=True):
        text = text_of(token)
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
