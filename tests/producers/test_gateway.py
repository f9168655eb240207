"""The gateway between a real OpenAI client, a real HTTP server and a real broker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from agl_stream.errors import PortInUse, SettingError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.gateway.server import Gateway
from agl_stream.schemas.blobs import BlobStore
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.tokens import unpack_floats, unpack_ids
from agl_stream.settings import Settings
from tests.producers.conftest import Log
from tests.producers.inference_server import PIECES, PROMPT_IDS, TOOL_ARGUMENTS, InferenceServer, ids_of, logprobs_of

TEXT = "".join(PIECES)
TOOLS: Any = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
HELLO: Any = [{"role": "user", "content": "hällo"}]


@asynccontextmanager
async def running(
    settings: Settings, producer: EventProducer, **changes: Any
) -> AsyncIterator[tuple[str, InferenceServer]]:
    """(gateway URL, inference server)."""
    async with InferenceServer() as server:
        changes.setdefault("upstream_url", server.url)
        gateway = Gateway(dataclasses.replace(settings, **changes), producer)
        host, port = await gateway.start("127.0.0.1", 0)
        try:
            yield f"http://{host}:{port}", server
        finally:
            await gateway.stop()


def client(url: str, rollout_id: str, api_key: str = "none") -> openai.AsyncOpenAI:
    base_url = f"{url}/rollout/{rollout_id}/attempt/at-1/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)


async def one_span(log: Log, rollout_id: str) -> dict[str, Any]:
    spans = await asyncio.to_thread(log.events, "spans", rollout_id, 1)
    assert len(spans) == 1
    return spans[0]


def assert_tokens(span: dict[str, Any], index: int = 0) -> None:
    assert unpack_ids(span["prompt_token_ids"]) == PROMPT_IDS
    assert unpack_ids(span["response_token_ids"]) == ids_of(index)
    assert unpack_floats(span["response_logprobs"]) == logprobs_of(index)
    assert span["ids_missing"] is None


async def test_a_call_is_answered_and_recorded(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, server):
        answer = await client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO, temperature=0.7)
        # acknowledged before it was answered: it is there without any flush
        span = await one_span(log, rollout_id)
    assert answer.choices[0].message.content == TEXT
    assert (span["kind"], span["status"], span["attempt_id"]) == ("llm_call", "ok", "at-1")
    assert (span["model"], span["resources_id"], span["resources_version"]) == ("policy@3", "rs-policy", 3)
    assert span["finish_reason"] == "stop"
    assert_tokens(span)
    assert json.loads(span["request"]) == {"messages": HELLO, "model": "policy", "temperature": 0.7}
    stored = json.loads(span["response"])
    assert stored["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    ]
    assert json.loads(span["attributes"])["gen_ai.response.id"] == "chatcmpl-1"
    assert span["started_at_us"] <= span["ended_at_us"]
    asked = server.calls[0][0]
    assert asked == {**json.loads(span["request"]), "return_token_ids": True, "logprobs": True}


@pytest.mark.parametrize("model", ["policy", "dribbles"])
async def test_a_stream_is_passed_on_and_recorded_whole(settings, producer, log, rollout_id, model):
    async with running(settings, producer) as (url, _):
        stream = await client(url, rollout_id).chat.completions.create(
            model=model, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        span = await one_span(log, rollout_id)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 8
    assert_tokens(span)
    stored = json.loads(span["response"])
    assert stored["object"] == "chat.completion" and stored["usage"]["total_tokens"] == 8
    assert stored["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert (span["finish_reason"], span["resources_version"]) == ("stop", 4)


async def test_chunks_come_before_the_answer_is_complete_and_the_end_after_the_record(
    settings, producer, log, rollout_id
):
    async with running(settings, producer) as (url, server):
        server.go_on.clear()
        stream = await client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO, stream=True)
        pieces = aiter(stream)
        async with asyncio.timeout(10):
            assert (await anext(pieces)).choices[0].delta.role == "assistant"
            assert (await anext(pieces)).choices[0].delta.content == PIECES[0]
        assert server.calls and not server.cancelled.is_set()
        server.go_on.set()
        async for chunk in stream:
            if chunk.choices[0].finish_reason is not None:
                # whoever sees the end may end the attempt: the span is on the log by now
                assert_tokens(await one_span(log, rollout_id))
                break
        else:
            pytest.fail("no finish reason came")


async def test_tool_calls_are_recorded_streaming_or_not(settings, producer, log):
    async with running(settings, producer) as (url, _):
        plain, streamed = "ro-tools-plain", "ro-tools-stream"
        answer = await client(url, plain).chat.completions.create(model="policy", messages=HELLO, tools=TOOLS)
        assert answer.choices[0].message.tool_calls
        stream = await client(url, streamed).chat.completions.create(
            model="policy", messages=HELLO, tools=TOOLS, stream=True
        )
        arguments = [
            call.function.arguments
            async for chunk in stream
            for call in chunk.choices[0].delta.tool_calls or ()
            if call.function and call.function.arguments
        ]
        first, second = await one_span(log, plain), await one_span(log, streamed)
    assert arguments == TOOL_ARGUMENTS
    messages = [json.loads(span["response"])["choices"][0]["message"] for span in (first, second)]
    assert messages[0] == messages[1]
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == "".join(TOOL_ARGUMENTS)
    assert first["finish_reason"] == second["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_has_its_span(settings, producer, log, stream):
    rollout_id = f"ro-choices-{stream}".lower()
    async with running(settings, producer) as (url, _):
        made = client(url, rollout_id).chat.completions.create
        if stream:
            async for _chunk in await made(model="policy", messages=HELLO, n=3, stream=True):
                pass
        else:
            await made(model="policy", messages=HELLO, n=3)
        spans = await asyncio.to_thread(log.events, "spans", rollout_id, 3)
    assert len(spans) == 3 and len({span["span_id"] for span in spans}) == 3
    for index, span in enumerate(spans):
        assert_tokens(span, index)
        attributes = json.loads(span["attributes"])
        assert (attributes["agentlightning.choice.index"], attributes["agentlightning.choice.count"]) == (index, 3)
        assert ("gen_ai.usage.output_tokens" in attributes) is (index == 0 and not stream)
        assert [choice["index"] for choice in json.loads(span["response"])["choices"]] == [index]


async def test_completions_with_several_prompts(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, server):
        await client(url, rollout_id).completions.create(model="policy", prompt=["a", "b"])
        spans = await asyncio.to_thread(log.events, "spans", rollout_id, 2)
    assert server.calls[0][0]["logprobs"] == 1
    assert [unpack_ids(span["prompt_token_ids"]) for span in spans] == [[*PROMPT_IDS, 0], [*PROMPT_IDS, 1]]
    assert [unpack_floats(span["response_logprobs"]) for span in spans] == [logprobs_of(0), logprobs_of(1)]


async def test_what_the_client_asked_for_itself_is_kept(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, server):
        await client(url, rollout_id).chat.completions.create(
            model="policy", messages=HELLO, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": False}
        )
        span = await one_span(log, rollout_id)
    assert server.calls[0][0]["return_token_ids"] is True and server.calls[0][0]["top_logprobs"] == 2
    assert json.loads(span["request"])["return_token_ids"] is False
    assert len(json.loads(span["response"])["choices"][0]["logprobs"]["content"]) == len(PIECES)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_upstream_are_passed_on_and_recorded(settings, producer, log, stream):
    rollout_id = f"ro-limited-{stream}".lower()
    async with running(settings, producer) as (url, server):
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            await client(url, rollout_id).chat.completions.create(model="limited", messages=HELLO, stream=stream)
        span = await one_span(log, rollout_id)
    assert caught.value.response.headers["retry-after"] == "7"
    assert len(server.calls) == 1
    assert (span["status"], span["ids_missing"]) == ("error", "upstream_error")
    assert "429" in span["status_description"] and "slow down" in span["response"]
    assert json.loads(span["attributes"])["http.response.status_code"] == 429


async def test_an_answer_that_is_no_json_is_recorded_as_an_error(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, _), aiohttp.ClientSession() as session:
        path = f"{url}/rollout/{rollout_id}/attempt/at-1/v1/chat/completions"
        async with session.post(path, json={"model": "not-json", "messages": HELLO}) as answer:
            assert await answer.text() == "<html>"
        span = await one_span(log, rollout_id)
    assert span["status"] == "error" and span["response"] == "<html>"


async def test_nan_logprobs_reach_the_joiner_as_such(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, _), aiohttp.ClientSession() as session:
        path = f"{url}/rollout/{rollout_id}/attempt/at-1/v1/chat/completions"
        async with session.post(path, json={"model": "nan", "messages": HELLO}) as answer:
            assert "NaN" in await answer.text()
        span = await one_span(log, rollout_id)
    first, *rest = unpack_floats(span["response_logprobs"])
    assert first != first and rest == logprobs_of(0)[1:]
    json.loads(span["response"], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


async def test_an_upstream_that_refuses_the_extra_is_asked_without_it(settings, producer, log, rollout_id):
    async with running(settings, producer) as (url, server):
        for number in range(2):
            await client(url, f"{rollout_id}-{number}").chat.completions.create(model="plain-openai", messages=HELLO)
        span = await one_span(log, f"{rollout_id}-1")
    # the first call tries with it and without, the second knows
    assert ["return_token_ids" in body for body, _ in server.calls] == [True, False, False]
    assert (span["status"], span["ids_missing"]) == ("ok", "upstream_refused")
    assert span["prompt_token_ids"] is None and unpack_floats(span["response_logprobs"]) == logprobs_of(0)


@pytest.mark.parametrize("model", ["policy", "drops"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_busy_or_breaking_upstream_is_tried_again(settings, producer, log, rollout_id, model, stream):
    async with running(settings, producer) as (url, server):
        server.failures_left = 3
        made = await client(url, rollout_id).chat.completions.create(model=model, messages=HELLO, stream=stream)
        if stream:
            assert [chunk async for chunk in made]
        assert_tokens(await one_span(log, rollout_id))
    assert len(server.calls) == 4


async def test_an_upstream_that_comes_back_is_waited_for(settings, producer, log, rollout_id):
    async with InferenceServer() as server:
        port = server.port
    async with running(settings, producer, upstream_url=f"http://127.0.0.1:{port}/v1") as (url, _):
        call = asyncio.create_task(client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO))
        await asyncio.sleep(0.2)
        assert not call.done()
        async with InferenceServer(port) as server:
            assert (await call).choices[0].message.content == TEXT
            assert len(server.calls) == 1
        assert_tokens(await one_span(log, rollout_id))


async def test_when_patience_is_over_the_client_is_told_and_so_is_the_log(settings, producer, log, rollout_id):
    changes = {"upstream_url": "http://127.0.0.1:1/v1", "upstream_patience_seconds": 0.3}
    async with running(settings, producer, **changes) as (url, _):
        with pytest.raises(openai.InternalServerError, match="AGL_STREAM_UPSTREAM_URL") as caught:
            await client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO)
        span = await one_span(log, rollout_id)
    assert caught.value.status_code == 502 and caught.value.response.headers["x-should-retry"] == "false"
    assert span["status"] == "error" and span["status_description"].startswith("upstream_unreachable")
    assert span["ids_missing"] == "upstream_error"


async def test_a_silent_upstream_is_given_up(settings, producer, log, rollout_id):
    async with running(settings, producer, upstream_timeout_seconds=0.3) as (url, _):
        with pytest.raises(openai.InternalServerError, match="AGL_STREAM_UPSTREAM_TIMEOUT_SECONDS"):
            await client(url, rollout_id).chat.completions.create(model="hangs", messages=HELLO)
        assert (await one_span(log, rollout_id))["status"] == "error"


@pytest.mark.parametrize(("model", "why"), [("breaks", "broke off"), ("errors", "with an error")])
async def test_a_stream_that_does_not_end_well_is_told_as_such(settings, producer, log, model, why):
    rollout_id = f"ro-{model}"
    async with running(settings, producer) as (url, _):
        stream = await client(url, rollout_id).chat.completions.create(model=model, messages=HELLO, stream=True)
        with pytest.raises(openai.APIError):
            async for _chunk in stream:
                pass
        span = await one_span(log, rollout_id)
    assert span["status"] == "error" and why in span["status_description"]
    assert json.loads(span["response"])["choices"][0]["message"]["content"] == PIECES[0]
    assert unpack_ids(span["response_token_ids"]) == ids_of(0)[:1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_stops_the_generation_and_is_recorded(settings, producer, log, stream):
    rollout_id = f"ro-gone-{stream}".lower()
    async with running(settings, producer) as (url, server):
        server.go_on.clear()
        made = client(url, rollout_id)
        call = made.chat.completions.create(model="policy", messages=HELLO, stream=stream)
        if stream:
            answer = await call
            assert await anext(aiter(answer))
            await answer.close()
        else:
            task = asyncio.ensure_future(call)
            await server.called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await made.close()
        async with asyncio.timeout(10):
            await server.cancelled.wait()
        span = await one_span(log, rollout_id)
    assert (span["status"], span["status_description"]) == ("error", "client_disconnected")
    assert (span["ids_missing"] == "client_disconnected") is not stream
    assert (span["response"] is None) is not stream


async def test_a_large_payload_is_checked_in(settings, producer, log, rollout_id):
    text = "ä" * 200_000
    async with running(settings, producer) as (url, _):
        await client(url, rollout_id).chat.completions.create(
            model="policy", messages=[{"role": "user", "content": text}]
        )
        span = await one_span(log, rollout_id)
    assert span["request"] is None and span["response"] is None and span["attributes"] == "{}"
    payload = json.loads(BlobStore(settings.blob_address()).get(span["payload_ref"]))
    assert json.loads(payload["request"])["messages"][0]["content"] == text
    assert json.loads(payload["response"])["id"] == "chatcmpl-1"
    assert_tokens(span)


async def test_wrong_requests_get_json_that_helps(settings, producer, rollout_id):
    path = f"/rollout/{rollout_id}/attempt/at-1/v1"
    cases = [
        ("POST", f"{path}/chat/completions", b"{nope", 400, "not JSON"),
        ("POST", f"{path}/chat/completions", b"[1]", 400, "not an object"),
        ("POST", f"{path}/chat/completions", b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 400, "nested deeper"),
        (
            "POST",
            f"{path}/chat/completions",
            b'{"a": "' + b"x" * 70_000 + b'"}',
            413,
            "AGL_STREAM_GATEWAY_MAX_BODY_BYTES",
        ),
        ("POST", "/rollout/a%20b/attempt/at-1/v1/chat/completions", b"{}", 400, "rollout_id"),
        ("POST", f"{path}/embeddings", b"{}", 404, "/v1/chat/completions"),
        ("GET", f"{path}/chat/completions", None, 404, "GET"),
        ("GET", "/nothing/here", None, 404, "base URL"),
        ("POST", "/v1/chat/completions", b"{}", 400, "AGL_STREAM_GATEWAY_ALLOW_UNRECORDED"),
    ]
    async with running(settings, producer, gateway_max_body_bytes=65_536) as (url, server):
        async with aiohttp.ClientSession() as session:
            for method, route, body, status, words in cases:
                async with session.request(method, url + route, data=body) as answer:
                    told = await answer.json()
                    assert answer.status == status, (route, told)
                    assert words in told["error"]["message"] and "Traceback" not in str(told)
        assert not server.calls


async def test_models_and_unrecorded_calls_pass(settings, producer, rollout_id):
    async with running(settings, producer, gateway_allow_unrecorded=True) as (url, server):
        assert [model.id async for model in client(url, rollout_id).models.list()] == ["policy"]
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert (await plain.chat.completions.create(model="policy", messages=HELLO)).choices[0].message.content == TEXT
        stream = await plain.chat.completions.create(model="policy", messages=HELLO, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        assert all("return_token_ids" not in body for body, _ in server.calls)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as answer:
            assert (await answer.json())["status"] == "ok"


async def test_keys_go_where_they_belong(settings, producer, rollout_id):
    with pytest.raises(SettingError, match="AGL_STREAM_GATEWAY_TOKEN"):
        await Gateway(settings, producer).start("0.0.0.0", 0)
    async with running(settings, producer) as (url, server):
        await client(url, rollout_id, "client-key").chat.completions.create(model="policy", messages=HELLO)
        assert server.calls[0][1]["Authorization"] == "Bearer client-key"
    async with running(settings, producer, gateway_token="secret") as (url, server):
        with pytest.raises(openai.AuthenticationError, match="AGL_STREAM_GATEWAY_TOKEN"):
            await client(url, rollout_id, "wrong").chat.completions.create(model="policy", messages=HELLO)
        await client(url, rollout_id, "secret").chat.completions.create(model="policy", messages=HELLO)
        assert len(server.calls) == 1 and "Authorization" not in server.calls[0][1]
    async with running(settings, producer, upstream_api_key="up") as (url, server):
        await client(url, rollout_id, "client-key").chat.completions.create(model="policy", messages=HELLO)
        assert server.calls[0][1]["Authorization"] == "Bearer up"


async def test_a_taken_port_is_named(settings, producer):
    async with running(settings, producer) as (url, _):
        with pytest.raises(PortInUse, match="--port"):
            await Gateway(settings, producer).start("127.0.0.1", int(url.rsplit(":", 1)[1]))


async def test_a_trace_is_continued_and_the_clock_heard(settings, producer, log, rollout_id):
    ahead = (2_000_000_000_000) << 16
    headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    async with running(settings, producer) as (url, _):
        made = client(url, rollout_id)
        await made.chat.completions.create(model="policy", messages=HELLO, extra_headers=headers)
        span = await one_span(log, rollout_id)
        assert (span["trace_id"], span["parent_id"]) == ("ab" * 16, "cd" * 8)
        # a clock far ahead is a sick one; a little ahead is another machine's
        later = span["sequence_id"] + (5_000 << 16)
        for clock in (later, ahead):
            await made.chat.completions.create(
                model="policy", messages=HELLO, extra_headers={"x-agl-clock": str(clock)}
            )
        spans = await asyncio.to_thread(log.events, "spans", rollout_id, 3)
    assert later < spans[1]["sequence_id"] < spans[2]["sequence_id"] < later + (10_000 << 16)


async def test_a_call_that_cannot_be_recorded_fails_honestly(settings, rollout_id):
    away = dataclasses.replace(settings, bootstrap_servers="127.0.0.1:1", delivery_timeout_seconds=1.0)
    producer = EventProducer(away, name="tests", codec=Codec())
    async with running(away, producer) as (url, _):
        with pytest.raises(openai.InternalServerError, match="could not be recorded"):
            await client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO)
        stream = await client(url, rollout_id).chat.completions.create(model="policy", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="could not be recorded"):
            async for _chunk in stream:
                pass
    producer.close()


async def test_many_streams_at_once(settings, producer, log):
    async with running(settings, producer) as (url, _):
        made = client(url, "ro-many")

        async def one() -> str:
            stream = await made.chat.completions.create(model="policy", messages=HELLO, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*(one() for _ in range(64))) == [TEXT] * 64
        spans = await asyncio.to_thread(log.events, "spans", "ro-many", 64)
    assert len({span["span_id"] for span in spans}) == len({span["sequence_id"] for span in spans}) == 64
    for span in spans:
        assert_tokens(span)
