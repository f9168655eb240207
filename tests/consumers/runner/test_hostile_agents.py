"""Agents whose results and errors work against the runner: each attempt ends all the same, and frees its slot."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from typing import Any

import pytest

from agl_stream.agents import LitAgent
from agl_stream.consumers.runner.events import Claim
from agl_stream.consumers.runner.outcome import Outcome
from agl_stream.consumers.runner.report import report_end
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.spans import SpanWriter
from agl_stream.types import SpanCoreFields


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot be printed")

    __repr__ = __str__


class _NoNumber:
    __class__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


class _FalseSpan:
    """Has the shape of an OpenTelemetry span, and nothing else of it."""

    name, attributes, start_time = "x", {}, "yesterday"

    def get_span_context(self) -> None:
        return None


def _raise(error: BaseException) -> Any:
    raise error


_BODIES: dict[str, Any] = {
    "unprintable": lambda: _raise(_Silent()),
    "unencodable": lambda: _raise(ValueError("half \ud83d of a pair")),
    "endless": lambda: _raise(ValueError("x" * 20_000_000)),
    "huge": lambda: 10**400,
    "unreadable": lambda: _NoNumber(),
    "timeless": lambda: [SpanCoreFields(name="x", start_time=math.inf)],
    "untimely": lambda: [SpanCoreFields(name="x", start_time=1e300)],
    "half a name": lambda: [SpanCoreFields(name="\ud83d")],
    "false span": lambda: [_FalseSpan()],
}


async def test_every_attempt_ends_and_frees_its_slot(bench: Any) -> None:
    async with bench.runner(lambda task: _BODIES[task](), runner_slots=1):
        offers = {task: bench.feed.dispatch(task) for task in _BODIES}
        ends = {task: await bench.watch.wait_for_end(offer) for task, offer in offers.items()}
    assert {task: (end["status"], end["reason_code"]) for task, end in ends.items()} == {
        "unprintable": ("failed", "agent_error"),
        "unencodable": ("failed", "agent_error"),
        "endless": ("failed", "agent_error"),
        "huge": ("failed", "bad_reward"),
        "unreadable": ("failed", "bad_result"),
        "timeless": ("failed", "bad_result"),
        "untimely": ("failed", "bad_result"),
        "half a name": ("failed", "bad_result"),
        "false span": ("failed", "bad_result"),
    }
    for task in ("unprintable", "unencodable", "endless"):
        (span,) = bench.watch.events("spans", attempt_id=offers[task]["attempt_id"])
        attributes = json.loads(span["attributes"])
        assert attributes["exception.message"] and len(span["attributes"]) < 200_000
        assert __file__ in attributes["exception.stacktrace"]


async def test_an_agent_cannot_end_the_loop_of_the_others(bench: Any) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def agent(task: str) -> float:
        if task == "exit":
            await asyncio.gather(leave())
        elif task == "stop":
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return 1.0

    async with bench.runner(agent, runner_slots=1):
        offers = {task: bench.feed.dispatch(task) for task in ("exit", "stop", "after")}
        ends = {task: await bench.watch.wait_for_end(offer) for task, offer in offers.items()}
    assert {task: (end["status"], end["reason_code"]) for task, end in ends.items()} == {
        "exit": ("failed", "agent_error"),
        "stop": ("succeeded", None),
        "after": ("succeeded", None),
    }


@pytest.mark.parametrize("method", ["is_async", "method_for"])
async def test_an_agent_that_cannot_be_called_fails_its_attempts(bench: Any, method: str) -> None:
    agent = LitAgent()
    async with bench.runner(agent):
        setattr(agent, method, lambda *_: _raise(_Silent()))
        end = await bench.watch.wait_for_end(bench.feed.dispatch("any"))
    assert (end["status"], end["reason_code"]) == ("failed", "agent_error")


async def test_an_end_that_cannot_be_encoded_is_reported_without_its_detail(bench: Any) -> None:
    from agl_stream.consumers.runner.events import WorkerIdentity

    offered = bench.feed.dispatched("any")
    claim = Claim({**offered, "delivery": 1}, 0, 0, 1)
    with EventProducer(bench.settings, name="runner") as producer:
        writer = SpanWriter(producer, claim.rollout_id, claim.attempt_id)
        outcome = Outcome("failed", reason_code="agent_error", detail="half \ud83d of a pair")
        worker = WorkerIdentity("w", "i", 0)
        await report_end(outcome, claim, worker, writer, producer, give_up=lambda: False)
    end = await bench.watch.wait_for_end(offered)
    assert (end["status"], end["reason_code"], end["detail"]) == ("failed", "agent_error", None)
