"""Requests are checked field by field."""

from __future__ import annotations

from typing import Any

import pytest

from agl_stream.trainer.server.protocol import BadRequest, parse_chat

MESSAGES = [{"role": "user", "content": "1+2="}]


def parse(**fields: Any) -> Any:
    return parse_chat({"model": "policy", "messages": MESSAGES, **fields}, "policy")


def test_defaults() -> None:
    request = parse()
    assert (request.n, request.max_tokens, request.temperature, request.stream) == (1, None, 1.0, False)
    assert (request.logprobs, request.return_token_ids, request.include_usage) == (False, False, False)


def test_what_a_client_may_say() -> None:
    request = parse(
        n=3,
        max_completion_tokens=5,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        return_token_ids=True,
        top_p=1.0,
        stop=None,
        tools=[],
        seed=None,
        user="somebody",
    )
    assert (request.n, request.max_tokens, request.temperature) == (3, 5, 0.0)
    assert request.stream and request.include_usage and request.logprobs and request.return_token_ids


def test_text_parts_are_joined_and_missing_content_is_empty() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "2="}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    parsed = parse_chat({"messages": messages}, "policy").messages
    assert [message["content"] for message in parsed] == ["1+2=", ""]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"stop": ["x"]}, "stop"),
        ({"seed": 1}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert (refused.value.param, refused.value.status) == (param, 400)


def test_another_model_is_not_found_and_another_body_is_bad() -> None:
    with pytest.raises(BadRequest) as missing:
        parse(model="gpt")
    assert (missing.value.status, missing.value.code) == (404, "model_not_found")
    with pytest.raises(BadRequest):
        parse_chat([1], "policy")
