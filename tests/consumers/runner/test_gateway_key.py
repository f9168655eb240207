"""A gateway that asks for a token: agents are given it, and it is written nowhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

import agl_stream as agl
from agl_stream.consumers.runner.gateway_key import is_below, with_gateway_key
from agl_stream.producers import json_text
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.gateway.server import Gateway
from agl_stream.settings import Settings
from tests.producers.inference_server import InferenceServer

TOKEN = "a-token-of-the-gateway"
SETTINGS = Settings(gateway_url="http://Gate:4747/", gateway_token=TOKEN)


@asynccontextmanager
async def gateway_of(settings: Settings) -> AsyncIterator[str]:
    async with InferenceServer() as server:
        with EventProducer(settings, name="gateway") as producer:
            gateway = Gateway(dataclasses.replace(settings, gateway_token=TOKEN, upstream_url=server.url), producer)
            host, port = await gateway.start("127.0.0.1", 0)
            try:
                yield f"http://{host}:{port}"
            finally:
                await gateway.stop()


@agl.operation
async def ask(llm: agl.LLM, resources: Any) -> str:
    async with openai.AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key or "none", max_retries=0) as client:
        answer = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hi"}])
    return f"{answer.choices[0].message.content} from {llm!r}"


async def agent(task: Any, llm: Any, resources: Any) -> float:
    assert await ask(llm, resources)
    return 1.0


async def test_agents_call_a_gateway_that_requires_its_token(bench: Any) -> None:
    async with gateway_of(bench.settings) as url:
        model = {"resource_type": "proxy_llm", "endpoint": url + "/v1", "model": "policy"}
        bench.feed.publish({"llm": model})
        async with bench.runner(agent, gateway_url=url, gateway_token=TOKEN):
            offers = [
                bench.feed.dispatch("no resources"),
                bench.feed.dispatch("published ones", resources_id="rs-1", resources_version=1),
            ]
            ends = await bench.watch.wait_for_ends(offers)
            assert [end["status"] for end in ends] == ["succeeded", "succeeded"], ends
        async with bench.runner(agent, gateway_url=url):
            end = await bench.watch.wait_for_end(bench.feed.dispatch("no token"))
            assert "AuthenticationError" in end["detail"]
    for offered in offers:
        spans = bench.watch.events("spans", attempt_id=offered["attempt_id"])
        assert sorted(span["kind"] for span in spans) == ["llm_call", "operation", "reward"]
        assert url in next(span["attributes"] for span in spans if span["kind"] == "operation")
    assert TOKEN not in str([bench.watch.events(topic) for topic in bench.watch.TOPICS])


def test_the_token_goes_to_this_gateway_and_to_no_model_that_has_a_key() -> None:
    resources: dict[str, Any] = {
        "ours": agl.ProxyLLM(endpoint="http://gate:4747/v1", model="m"),
        "plain": agl.LLM(endpoint="http://gate:4747/v1", model="m"),
        "keyed": agl.ProxyLLM(endpoint="http://gate:4747/v1", model="m", api_key="own"),
        "theirs": agl.ProxyLLM(endpoint="http://elsewhere:4747/v1", model="m"),
        "prompt": agl.PromptTemplate(template="x"),
    }
    given: dict[str, Any] = with_gateway_key(resources, SETTINGS)
    keys = {name: getattr(resource, "api_key", None) for name, resource in given.items()}
    assert keys == {"ours": TOKEN, "plain": TOKEN, "keyed": "own", "theirs": None, "prompt": None}
    assert resources["ours"].api_key is None, "what the runner keeps for other attempts is left alone"
    assert with_gateway_key(resources, dataclasses.replace(SETTINGS, gateway_token="")) is resources


def test_a_lent_key_is_in_no_text_and_one_of_its_own_is_kept() -> None:
    own = agl.ProxyLLM(endpoint="http://gate:4747/v1", model="m", api_key="own")
    assert json.loads(own.model_dump_json())["api_key"] == "own" and "own" not in repr(own)
    lent = own.with_lent_key(TOKEN)
    for text in (json_text.dumps({"llm": lent}), repr(lent), str(lent), str(lent.model_dump()), lent.model_dump_json()):
        assert TOKEN not in text
    assert lent.model_copy().api_key == TOKEN
    assert agl.ProxyLLM.model_validate_json(lent.model_dump_json()).api_key is None


@pytest.mark.parametrize(
    ("address", "root", "below"),
    [
        ("http://gate:4747/v1", "http://GATE:4747", True),
        ("http://gate:80/v1", "http://gate/", True),
        ("https://gate/agl/v1", "https://gate:443/agl/", True),
        ("https://gate/agl", "https://gate/agl", True),
        ("https://gate/aglet/v1", "https://gate/agl", False),
        ("https://gate/agl/../other/v1", "https://gate/agl", False),
        ("https://gate/agl/%2e%2e/other/v1", "https://gate/agl", False),
        ("http://gate:4747/v1", "https://gate:4747", False),
        ("http://gate:4747@elsewhere/v1", "http://gate:4747", False),
        ("http://gate:x/v1", "http://gate:4747", False),
        ("", "http://gate:4747", False),
    ],
)
def test_addresses_below_the_gateway(address: str, root: str, below: bool) -> None:
    assert is_below(address, root) is below
