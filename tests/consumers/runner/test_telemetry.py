"""Agents that trace themselves with OpenTelemetry: recorded, once, and without harm to the training data."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from agl_stream.schemas.tokens import unpack_ids
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.spans import view_of
from tests.consumers.runner.test_gateway_key import TOKEN, gateway_of
from tests.producers.inference_server import PROMPT_IDS


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """The process's tracer provider, as an agent's module would set it; a process may do so only once."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return provider


async def test_spans_of_agents_that_trace_are_recorded(bench: Any, provider: TracerProvider) -> None:
    async def agent(task: str) -> float:
        with trace.get_tracer("agent").start_as_current_span("plan", attributes={"task": task}):
            pass
        return 1.0

    async with bench.runner(agent):
        offers = bench.feed.dispatch_many(["first", "second"])
        await bench.watch.wait_for_ends(offers)
    for offered in offers:
        # one of each: attached at every attempt, recorded once
        plan, reward = bench.watch.events("spans", attempt_id=offered["attempt_id"])
        assert (plan["name"], json.loads(plan["attributes"])) == ("plan", {"task": json.loads(offered["input"])})
        assert (reward["kind"], reward["reward"]) == ("reward", 1.0)


async def test_a_call_traced_and_passed_by_the_gateway_is_one_triplet(bench: Any, provider: TracerProvider) -> None:
    async def agent(task: str, llm: Any) -> float:
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": llm.model}
        with trace.get_tracer("client").start_as_current_span("chat", attributes=about) as span:
            async with openai.AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
                messages: Any = [{"role": "user", "content": task}]
                answer = await client.chat.completions.create(model=llm.model, messages=messages)
            span.set_attribute("gen_ai.response.id", answer.id)
        return 0.5

    async with gateway_of(bench.settings) as url, bench.runner(agent, gateway_url=url, gateway_token=TOKEN):
        offered = bench.feed.dispatch("hi")
        end = await bench.watch.wait_for_end(offered)
    assert end["status"] == "succeeded", end
    spans = bench.watch.events("spans", attempt_id=offered["attempt_id"])
    assert sorted(span["kind"] for span in spans) == ["llm_call", "llm_call", "reward"]
    adapted = LlmCalls().adapt([view for span in spans if (view := view_of(span, 0, 0)) is not None])
    (triplet,) = adapted.triplets
    assert (unpack_ids(triplet["prompt_token_ids"]), triplet["reward"]) == (PROMPT_IDS, 0.5)
    assert adapted.reason_code is None and adapted.detail is None


async def test_a_strange_span_fails_neither_agent_nor_attempt(bench: Any, provider: TracerProvider) -> None:
    async def agent(task: str) -> float:
        with trace.get_tracer("agent").start_as_current_span("half \ud83d", attributes={"half": "\ud83d"}):
            pass
        return 1.0

    async with bench.runner(agent):
        offered = bench.feed.dispatch("any")
        end = await bench.watch.wait_for_end(offered)
    assert end["status"] == "succeeded", end
    strange = bench.watch.events("spans", attempt_id=offered["attempt_id"])[0]
    assert (strange["name"], json.loads(strange["attributes"])) == ("half ?", {"half": "?"})


def test_an_agent_that_does_not_trace_loads_no_sdk() -> None:
    look = (
        "import sys, agl_stream.consumers.runner.telemetry as telemetry; telemetry.attach_where_traced();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_no_provider_is_set_for_an_agent_that_only_has_the_sdk() -> None:
    look = (
        "import opentelemetry.sdk.trace as sdk, agl_stream.consumers.runner.telemetry as telemetry;"
        "from opentelemetry import trace; telemetry.attach_where_traced();"
        "print(isinstance(trace.get_tracer_provider(), sdk.TracerProvider))"
    )
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
