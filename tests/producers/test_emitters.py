"""What an agent says of itself: inside a rollout on the log, outside one in its hand."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.producers.attributes import flatten, links, of_exception, tags
from agl_stream.producers.context import activate, current
from agl_stream.producers.emitters import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
)
from agl_stream.producers.spans import SpanWriter
from agl_stream.schemas.blobs import BlobStore


@operation
def add(left: int, right: int, *more: int) -> int:
    emit_message("adding")
    return left + right + sum(more)


@operation(name="shout", team="red")
async def shout(words: object) -> str:
    await asyncio.sleep(0)
    raise ValueError(f"no voice for {words}")


def attributes(span: dict) -> dict:
    return json.loads(span["attributes"])


def test_outside_a_rollout_the_span_comes_back_unwritten():
    assert current() is None
    span = emit_reward(True)
    assert (span["kind"], span["reward"], span["rollout_id"], span["span_id"]) == ("reward", 1.0, "", "")
    assert attributes(span) == {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    assert add(1, 2) == 3


def test_rewards_of_several_dimensions():
    span = emit_reward({"length": 0.5, "correct": 1}, primary_key="correct", attributes={"by": {"whom": "judge"}})
    assert span["reward"] == 1.0
    assert attributes(span) == {
        "agentlightning.reward.0.name": "correct",
        "agentlightning.reward.0.value": 1.0,
        "agentlightning.reward.1.name": "length",
        "agentlightning.reward.1.value": 0.5,
        "by.whom": "judge",
    }
    assert emit_reward(numpy.float32(0.5))["reward"] == 0.5


@pytest.mark.parametrize(
    ("value", "key", "error"),
    [
        ("1", None, TypeError),
        (None, None, TypeError),
        ({"a": 1}, None, ValueError),
        ({"a": 1}, "b", ValueError),
        ({"a": "x"}, "a", ValueError),
        (math.nan, None, ValueError),
        ({"a": math.inf}, "a", ValueError),
    ],
)
def test_what_is_no_reward(value, key, error):
    with pytest.raises(error):
        emit_reward(value, primary_key=key)


def test_the_other_emitters_refuse_what_they_do_not_take():
    with pytest.raises(TypeError):
        emit_message(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        emit_exception("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        emit_annotation({"a": object()})
    with pytest.raises(TypeError):
        emit_object(object())
    with pytest.raises(ValueError, match="set by the emitter itself"):
        emit_message("x", attributes={"agentlightning.message.body": "y"})
    with pytest.raises(ValueError, match="name="):
        operation(**{"agentlightning.operation.name": "x"})
    with pytest.raises(TypeError, match="generator"):

        @operation
        def numbers():
            yield 1


def test_objects_keep_their_form():
    assert attributes(emit_object(" a\nb ")) == {
        "agentlightning.object.type": "str",
        "agentlightning.object.literal": " a\nb ",
    }
    assert attributes(emit_object(b"\x00\xff"))["agentlightning.object.literal"] == "AP8="
    assert json.loads(attributes(emit_object({"a": [1, None]}))["agentlightning.object.json"]) == {"a": [1, None]}


def test_inside_a_rollout_everything_is_on_the_log_in_order(producer, log, rollout_id):
    writer = SpanWriter(producer, rollout_id, "at-1")
    with activate(writer):
        assert add(1, 2, 3) == 6
        with pytest.raises(ValueError, match="no voice"):
            asyncio.run(shout(object()))
        with operation(name="outer") as outer:
            outer.set_input("x", key={"deep": [1, {"b": 2}]}).set_output([1, 2])
            emit_annotation({"a": {"b": [1, 2], "c": [], "d": [1, {"e": None}]}})
            try:
                raise KeyError("k")
            except KeyError as error:
                emit_exception(error)
        assert outer.span() is not None
        writer.tool("search", input={"q": "x"}, output=["y"])
        emit_reward(0.25, propagate=False)
        emit_reward(0.75)
        writer.flush()
    spans = log.events("spans", rollout_id, 8)
    kinds = ["operation", "message", "operation", "operation", "annotation", "exception", "tool", "reward"]
    assert [span["kind"] for span in spans] == kinds
    added, message, shouted, outer_span, annotation, exception, tool, reward = spans
    assert attributes(added) == {
        "agentlightning.operation.name": "add",
        "agentlightning.operation.input.left": 1,
        "agentlightning.operation.input.right": 2,
        "agentlightning.operation.input.more": [3],
        "agentlightning.operation.output": 6,
    }
    assert message["parent_id"] == added["span_id"] and added["parent_id"] is None
    assert (shouted["status"], shouted["status_description"][:21]) == ("error", "ValueError: no voice ")
    assert attributes(shouted)["team"] == "red"
    assert attributes(shouted)["agentlightning.operation.input.words"].startswith("<object object")
    assert json.loads(shouted["events"])[0]["attributes"]["exception.type"] == "ValueError"
    assert attributes(outer_span)["agentlightning.operation.input.key.deep.1.b"] == 2
    assert attributes(annotation) == {"a.b": [1, 2], "a.d.0": 1}
    assert exception["status"] == "ok" and attributes(exception)["exception.type"] == "KeyError"
    assert {annotation["parent_id"], exception["parent_id"]} == {outer_span["span_id"]}
    assert tool["name"] == "search" and reward["reward"] == 0.75
    assert len({span["trace_id"] for span in spans}) == 1
    assert all(span["attempt_id"] == "at-1" for span in spans)


def test_rollouts_in_threads_and_tasks_do_not_mix(producer, log):
    def in_thread(number: int) -> None:
        writer = SpanWriter(producer, f"ro-mix-{number}", "at-1")
        with activate(writer):
            for _ in range(20):
                emit_reward(number)
            # a helper thread sees the rollout when the context is taken along, and none otherwise
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, emit_reward, number).result()
                assert pool.submit(current).result() is None
        writer.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(in_thread, range(4)))
    for number in range(4):
        spans = log.events("spans", f"ro-mix-{number}", 21)
        assert [span["reward"] for span in spans] == [number] * 21


def test_a_large_model_call_is_checked_in(producer, settings, log, rollout_id):
    writer = SpanWriter(producer, rollout_id, "at-1")
    writer.llm_call(
        request={"messages": ["x" * 300_000]}, response={"ok": 1}, prompt_token_ids=[1], response_token_ids=[2]
    )
    writer.flush()
    span = log.events("spans", rollout_id)[0]
    assert span["request"] is None and span["ids_missing"] is None
    payload = json.loads(BlobStore(settings.blob_address()).get(span["payload_ref"]))
    assert json.loads(payload["request"]) == {"messages": ["x" * 300_000]}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=5))
def test_flattened_attributes_are_flat_and_have_a_json_form(values):
    flat = flatten(values)
    json.dumps(flat, allow_nan=False)
    for value in flat.values():
        for item in value if isinstance(value, list) else [value]:
            assert isinstance(item, str | bool | int | float)


def test_tags_and_links():
    assert tags(["a", "b"]) == {"agentlightning.tag.0": "a", "agentlightning.tag.1": "b"}
    assert links({"span_id": "ab"}) == {
        "agentlightning.link.0.key_match": "span_id",
        "agentlightning.link.0.value_match": "ab",
    }


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [_Unprintable(), ValueError("half \ud83d of a pair"), ValueError("x" * 3_000_000)])
def test_an_exception_is_recorded_whatever_its_text(producer, log, rollout_id, error):
    writer = SpanWriter(producer, rollout_id, "at-1")
    with activate(writer):
        emit_exception(error)
        with pytest.raises(type(error)), operation(name="broken"):
            raise error
    writer.flush()
    spans = log.events("spans", rollout_id, 2)
    assert [span["kind"] for span in spans] == ["exception", "operation"]
    assert json.loads(spans[0]["attributes"])["exception.message"]
    assert spans[1]["status_description"].startswith(type(error).__name__)


def test_a_long_stack_keeps_where_it_began_and_what_it_ended_in():
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("y" * 60_000 + "the end")
        deep(levels - 1)

    with pytest.raises(ValueError) as caught:
        deep(50)
    stack = of_exception(caught.value, escaped=True)["exception.stacktrace"]
    assert isinstance(stack, str) and len(stack) < 60_000
    assert stack.startswith("Traceback") and stack.rstrip().endswith("the end")
