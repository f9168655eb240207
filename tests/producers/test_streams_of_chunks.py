"""The pure parts of the gateway: events out of bytes, answers out of chunks, bodies that ask for more."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.producers.gateway.access import allowed, is_loopback
from agl_stream.producers.gateway.assemble import StreamAssembler
from agl_stream.producers.gateway.call import CHAT, COMPLETIONS, Call, parse_body
from agl_stream.producers.gateway.sse import EventSplitter, EventTooLong, data_of

EVENTS = st.lists(
    st.text(alphabet=st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20).map(
        lambda text: f"data: {text}".encode()
    ),
    max_size=8,
)


@given(EVENTS, st.sampled_from([b"\n\n", b"\r\n\r\n"]), st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_events_do_not_depend_on_how_the_bytes_are_cut(events: list[bytes], blank: bytes, cuts: list[int]):
    whole = b"".join(event + blank for event in events) + b"data: begun"
    splitter, found, at, turn = EventSplitter(), [], 0, 0
    while at < len(whole):
        size = cuts[turn % len(cuts)]
        found += splitter.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
    assert b"".join(found) + splitter.rest() == whole
    assert [data_of(event) for event in found] == [event[6:].strip() for event in events]
    assert splitter.rest() == b"data: begun"


def test_an_event_without_end_is_refused():
    splitter = EventSplitter(max_bytes=100)
    with pytest.raises(EventTooLong):
        for _ in range(10):
            splitter.feed(b"x" * 20)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b": comment\n\n", b""),
        (b"event: x\ndata: a\ndata: b\nid: 7\n\n", b"a\nb"),
        (b"data:a\r\n\r\n", b"a"),
        (b"data: [DONE]\n\n", b"[DONE]"),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes):
    assert data_of(event) == data


@given(
    st.lists(
        st.binary(max_size=30)
        | st.sampled_from(
            [
                b'{"choices": [{"index": "x"}]}',
                b'{"choices": 3}',
                b'{"choices": [{"delta": 3}]}',
                b"[]",
                b"{nope",
                b'{"choices": [{"delta": {"tool_calls": [{"index": "y"}, 3]}}]}',
                b'{"choices": [{"logprobs": 3, "text": 4, "token_ids": 9}]}',
                b'{"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}',
            ]
        )
    )
)
def test_whatever_an_upstream_sends_is_survived(chunks: list[bytes]):
    whole = StreamAssembler(chat=True, choices=1)
    for chunk in chunks:
        whole.add(chunk)
    json.dumps(whole.response())
    finishing = sum(b'"finish_reason"' in chunk for chunk in chunks)
    assert whole.finished is (finishing > 0)
    if finishing:
        assert whole.response()["choices"][0]["message"]["content"].endswith("ok")


def test_text_completions_are_assembled():
    whole = StreamAssembler(chat=False, choices=2)
    for index in (0, 1, 0, 1):
        logprobs = {"tokens": ["a"], "token_logprobs": [-1.0]}
        choice = {"index": index, "text": f"t{index}", "logprobs": logprobs, "token_ids": [index]}
        whole.add(json.dumps({"id": "c", "choices": [choice]}).encode())
    assert not whole.finished
    for index in (0, 1):
        whole.add(json.dumps({"choices": [{"index": index, "text": "", "finish_reason": "stop"}]}).encode())
    assert whole.finished
    first, second = whole.response()["choices"]
    assert (first["text"], second["text"], second["token_ids"]) == ("t0t0", "t1t1", [1, 1])
    assert first["logprobs"] == {"tokens": ["a", "a"], "token_logprobs": [-1.0, -1.0]}


def call(body: object, route: str = CHAT) -> Call:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Call(route, "ro", "at", data, parse_body(data), 1, "", None)


@pytest.mark.parametrize(
    ("body", "route", "added"),
    [
        ({}, CHAT, {"return_token_ids": True, "logprobs": True}),
        ({"a": 1}, COMPLETIONS, {"return_token_ids": True, "logprobs": 1}),
        ({"a": 1, "logprobs": False}, CHAT, {"return_token_ids": True, "logprobs": True}),
        ({"prompt": "x", "logprobs": 0}, COMPLETIONS, {"return_token_ids": True}),
        ({"return_token_ids": None, "logprobs": True}, CHAT, {"return_token_ids": True}),
        ({"return_token_ids": True, "logprobs": True}, CHAT, {}),
    ],
)
def test_the_upstream_is_asked_for_ids_and_logprobs(body: dict, route: str, added: dict):
    assert json.loads(call(body, route).upstream_body()) == {**body, **added}
    refused = frozenset({"return_token_ids", "logprobs"})
    assert call(body, route).upstream_body(refused) == json.dumps(body).encode()


def test_the_clients_bytes_stay_as_they_are():
    data = b'  {"seed": 12345678901234567890123, "a":"\\u00e4", "t": 1.0}'
    assert call(data).upstream_body().endswith(b'"seed": 12345678901234567890123, "a":"\\u00e4", "t": 1.0}')


@pytest.mark.parametrize(
    ("body", "route", "choices"),
    [
        ({}, CHAT, 1),
        ({"n": 3}, CHAT, 3),
        ({"n": 0}, CHAT, 1),
        ({"n": "x"}, CHAT, 1),
        ({"prompt": ["a", "b"], "n": 2}, COMPLETIONS, 4),
        ({"prompt": [1, 2, 3]}, COMPLETIONS, 1),
        ({"prompt": [[1], [2]]}, COMPLETIONS, 2),
    ],
)
def test_how_many_choices_are_expected(body: dict, route: str, choices: int):
    assert call(body, route).choices == choices


def test_access():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org") and not is_loopback("::")
    assert allowed(None, "") and allowed("Bearer s3", "s3") and allowed("bearer  s3", "s3")
    assert not any(allowed(shown, "s3") for shown in (None, "", "s3", "Basic s3", "Bearer s", "Bearer ü"))
