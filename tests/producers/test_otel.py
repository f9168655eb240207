"""OpenTelemetry spans become typed SpanRecorded events of the rollout that was active at their start."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from agl_stream.errors import DeliveryFailed
from agl_stream.producers import semconv
from agl_stream.producers.context import activate
from agl_stream.producers.emitters import emit_reward
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.otel import RolloutSpanExporter, attach
from agl_stream.producers.otel.convert import sequence_of, typed_fields
from agl_stream.producers.spans import SpanWriter
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.tokens import unpack_floats, unpack_ids

OLD_CALL = {
    "llm.request.type": "chat",
    "gen_ai.request.model": "policy",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "be brief",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "17+25?",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "c1",
    "gen_ai.completion.0.tool_calls.0.name": "calculator",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"e": "17+25"}',
    "gen_ai.response.id": "r1",
    "gen_ai.response.model": "policy@3",
    "prompt_token_ids": (1, 2, 3),
    "response_token_ids": (4, 5),
    "logprobs.content": '[{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]',
}
NEW_CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "policy",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.system_instructions": '[{"type": "text", "content": "be brief"}]',
    "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "17+25?"}]}]',
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "c1", "name": "calculator", "arguments": '{"e": "17+25"}'}],
                "finish_reason": "tool_calls",
            }
        ]
    ),
    "gen_ai.response.finish_reasons": ("tool_calls",),
    "gen_ai.response.id": "r1",
    "gen_ai.response.model": "policy@3",
    "llm.hosted_vllm.prompt_token_ids": "[1, 2, 3]",
    "llm.hosted_vllm.choices": "[{'token_ids': [4, 5], 'message': None}]",
    "logprobs.content": '[{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]',
}


@pytest.mark.parametrize("attributes", [OLD_CALL, NEW_CALL], ids=["old", "new"])
def test_conventions_old_and_new_give_the_same_fields(attributes: dict[str, Any]):
    fields = typed_fields("whatever", attributes)
    assert (fields["kind"], fields["model"], fields["finish_reason"]) == ("llm_call", "policy@3", "tool_calls")
    assert unpack_ids(fields["prompt_token_ids"]) == [1, 2, 3]
    assert unpack_ids(fields["response_token_ids"]) == [4, 5]
    assert unpack_floats(fields["response_logprobs"]) == [-0.5, -0.25]
    assert fields["ids_missing"] is None
    assert json.loads(fields["request"]) == {
        "model": "policy",
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "17+25?"}],
    }
    choice = json.loads(fields["response"])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"e": "17+25"}'}}
    ]


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"gen_ai.operation.name": "execute_tool"}, "tool"),
        ({"gen_ai.operation.name": "invoke_agent"}, "agent"),
        ({"gen_ai.operation.name": "embeddings"}, "other"),
        ({"openinference.span.kind": "LLM"}, "llm_call"),
        ({"traceloop.span.kind": "workflow"}, "operation"),
        ({"agentops.span.kind": "agent"}, "agent"),
        ({"tool.name": "search"}, "tool"),
        ({"response_token_ids": (1,)}, "llm_call"),
        ({"agentlightning.reward.0.value": 1.0}, "reward"),
        ({"http.method": "GET"}, "other"),
    ],
)
def test_kinds_come_from_attributes(attributes: dict[str, Any], kind: str):
    assert typed_fields("any name", attributes)["kind"] == kind


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({}, "instrumentation_gave_none"),
        ({"prompt_token_ids": (1,)}, "instrumentation_gave_none"),
        ({"prompt_token_ids": "[1", "response_token_ids": (2,)}, "instrumentation_gave_none"),
        ({"prompt_token_ids": ("a",), "response_token_ids": (2,)}, "malformed"),
        ({"prompt_token_ids": (2**40,), "response_token_ids": (2,)}, "malformed"),
    ],
)
def test_missing_ids_say_why(attributes: dict[str, Any], why: str):
    fields = typed_fields("call", {"gen_ai.operation.name": "chat", **attributes})
    assert fields["ids_missing"] == why and "prompt_token_ids" not in fields


def test_spans_of_rollouts_at_once_are_kept_apart_and_flushed(producer, log):
    provider = attach(TracerProvider())
    assert attach(provider) is provider
    tracer = provider.get_tracer("agent")

    async def agent(writer: SpanWriter, number: int) -> None:
        with activate(writer), tracer.start_as_current_span("agent", attributes={"number": number}):
            await asyncio.sleep(0.01)
            with tracer.start_as_current_span("chat", attributes=OLD_CALL) as call:
                call.add_event("token", {"n": 1})
                await asyncio.sleep(0.01)
            emit_reward(number)
        await writer.aflush()

    async def all_agents() -> None:
        writers = [SpanWriter(producer, f"ro-otel-{number}", "at-1") for number in range(3)]
        await asyncio.gather(*(agent(writer, number) for number, writer in enumerate(writers)))

    with tracer.start_as_current_span("outside any rollout"):
        asyncio.run(all_agents())
    for number in range(3):
        spans = log.events("spans", f"ro-otel-{number}", 3)
        assert [span["kind"] for span in spans] == ["other", "llm_call", "reward"]
        outer, call, reward = spans
        assert json.loads(outer["attributes"]) == {"number": number}
        assert call["parent_id"] == outer["span_id"] and call["trace_id"] == outer["trace_id"]
        assert reward["parent_id"] == outer["span_id"] and reward["reward"] == number
        assert json.loads(call["events"])[0]["name"] == "token"
        assert outer["started_at_us"] <= call["started_at_us"] <= call["ended_at_us"] <= outer["ended_at_us"]


def test_a_span_that_ends_in_another_thread_finds_its_rollout(producer, log, rollout_id):
    provider = attach(TracerProvider())
    writer = SpanWriter(producer, rollout_id, "at-1")
    with activate(writer):
        span = provider.get_tracer("agent").start_span("work")
    span.set_status(Status(StatusCode.ERROR, "broke"))
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    assert provider.force_flush()
    written = log.events("spans", rollout_id)[0]
    assert (written["name"], written["status"], written["status_description"]) == ("work", "error", "broke")


def test_a_lost_span_is_told_by_the_flush(settings, rollout_id):
    away = dataclasses.replace(settings, bootstrap_servers="127.0.0.1:1", delivery_timeout_seconds=1.0)
    producer = EventProducer(away, name="tests", codec=Codec())
    provider = attach(TracerProvider())
    writer = SpanWriter(producer, rollout_id, "at-1")
    with activate(writer):
        provider.get_tracer("agent").start_span("work").end()
        assert not provider.force_flush(100)
        with pytest.raises(DeliveryFailed, match="at-1"):
            writer.flush()
    with pytest.raises(DeliveryFailed):
        producer.close()


def test_the_exporter_takes_the_rollout_from_the_resource(producer, log, rollout_id):
    resource = Resource.create({semconv.ROLLOUT_ID: rollout_id, semconv.ATTEMPT_ID: "at-7"})
    exporter = RolloutSpanExporter(producer)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with provider.get_tracer("elsewhere").start_as_current_span("outer"):
        provider.get_tracer("elsewhere").start_span("inner").end()
    assert provider.force_flush()
    outer, inner = log.events("spans", rollout_id, 2)
    assert (outer["name"], inner["name"], inner["attempt_id"]) == ("outer", "inner", "at-7")
    nobody = TracerProvider()
    nobody.add_span_processor(BatchSpanProcessor(exporter))
    nobody.get_tracer("elsewhere").start_span("lost").end()
    nobody.force_flush()
    assert exporter.skipped == 1
    provider.shutdown()
    nobody.shutdown()


def test_sequence_from_a_start_time_follows_it():
    times = [1_700_000_000_000_000_000 + step for step in (0, 20_000, 999_999, 1_000_000, 5_000_000)]
    made = [sequence_of(time) for time in times]
    assert made == sorted(set(made))
    assert made[0] >> 16 == 1_700_000_000_000


def test_a_span_that_cannot_be_an_event_raises_nothing_in_the_agent(producer, rollout_id):
    provider = attach(TracerProvider())
    writer = SpanWriter(producer, rollout_id, "at-1")
    with activate(writer):
        provider.get_tracer("agent").start_span("work", attributes={"agentlightning.reward.0.value": 10**400}).end()
    with pytest.raises(DeliveryFailed, match="span work"):
        writer.flush()
