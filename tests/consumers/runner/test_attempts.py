"""One attempt after the other: what an agent receives, what it returns, and what is on the log afterwards."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from typing import Any

import pytest

import agl_stream.producers.emitters as emitters
from agl_stream.agents import LitAgent
from agl_stream.types import SpanCoreFields


async def test_an_attempt_is_claimed_run_and_reported_in_order(bench: Any) -> None:
    async def agent(task: dict[str, Any]) -> float:
        emitters.emit_message(f"seen {task['q']}")
        return 0.5

    async with bench.runner(agent):
        offered = bench.feed.dispatch({"q": 7})
        end = await bench.watch.wait_for_end(offered)
    assert bench.watch.statuses(offered) == ["preparing", "running", "succeeded"]
    assert (end["reward"], end["reason_code"], end["delivery"]) == (0.5, None, 1)
    spans = bench.watch.events("spans", attempt_id=offered["attempt_id"])
    assert [span["kind"] for span in spans] == ["message", "reward"]
    assert spans[1]["reward"] == 0.5
    assert spans[0]["sequence_id"] < spans[1]["sequence_id"]
    preparing = bench.watch.events("attempts", status="preparing")[0]
    assert preparing["worker_id"] and preparing["worker_instance"]


def _sync_number(task: Any) -> float:
    emitters.emit_message("from a thread")
    return float(task)


async def _async_none(task: Any) -> None:
    await asyncio.sleep(0)


def _spans(task: Any) -> list[SpanCoreFields]:
    return [SpanCoreFields(name="step", attributes={"n": 1}), SpanCoreFields(name="agentlightning.message")]


class _Class(LitAgent):
    async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        return rollout.attempt.sequence_id


@pytest.mark.parametrize(
    ("agent", "reward", "kinds"),
    [
        (_sync_number, 3.0, ["message", "reward"]),
        (_async_none, None, []),
        (_spans, None, ["other", "message"]),
        (_Class, 1.0, ["reward"]),
    ],
)
async def test_kinds_of_agents_and_results(bench: Any, agent: Any, reward: float | None, kinds: list[str]) -> None:
    async with bench.runner(agent):
        offered = bench.feed.dispatch(3)
        end = await bench.watch.wait_for_end(offered)
    assert (end["status"], end["reward"]) == ("succeeded", reward)
    assert [span["kind"] for span in bench.watch.events("spans", attempt_id=offered["attempt_id"])] == kinds


async def test_failures_are_told_with_reason_and_one_line(bench: Any) -> None:
    def agent(task: str) -> Any:
        if task == "raise":
            raise LookupError("no such tool\nat all")
        return {"nan": math.nan, "dict": {"reward": 1}, "exit": None}[task] if task != "exit" else exit(3)

    async with bench.runner(agent):
        offers = {task: bench.feed.dispatch(task) for task in ("raise", "nan", "dict", "exit")}
        ends = {task: await bench.watch.wait_for_end(offer) for task, offer in offers.items()}
    assert {task: (end["status"], end["reason_code"]) for task, end in ends.items()} == {
        "raise": ("failed", "agent_error"),
        "nan": ("failed", "bad_reward"),
        "dict": ("failed", "bad_result"),
        "exit": ("failed", "agent_error"),
    }
    assert ends["raise"]["detail"] == "LookupError: no such tool at all"
    assert "type dict" in ends["dict"]["detail"]
    (span,) = bench.watch.events("spans", attempt_id=offers["raise"]["attempt_id"])
    attributes = json.loads(span["attributes"])
    assert (span["kind"], span["status"], attributes["exception.type"]) == ("exception", "error", "LookupError")
    # the stack shows the agent's own code first, not the runner's
    assert attributes["exception.stacktrace"].splitlines()[1].startswith(f'  File "{__file__}"')


async def test_resources_are_the_pinned_version_bound_to_the_attempt(bench: Any) -> None:
    seen: list[Any] = []

    def agent(task: Any, llm: Any, rollout: Any) -> None:
        seen.append((llm.endpoint, llm.model, rollout.resources_version, rollout.metadata, rollout.group_id))

    def llm(model: str) -> dict[str, Any]:
        return {"llm": {"resource_type": "proxy_llm", "endpoint": "http://gate/v1", "model": model}}

    bench.feed.publish(llm("first"), version=1)
    bench.feed.publish(llm("second"), version=2)
    async with bench.runner(agent):
        offered = bench.feed.dispatch(
            resources_id="rs-1", resources_version=1, metadata='{"m":1}', group_id="gr-1", group_size=2
        )
        # dispatched before its resources are on the log: the attempt waits for them
        early = bench.feed.dispatch(resources_id="rs-1", resources_version=3)
        await bench.watch.wait_for_end(offered)
        assert bench.watch.end(early) is None
        bench.feed.publish(llm("third"), version=3)
        assert (await bench.watch.wait_for_end(early))["status"] == "succeeded"
    url = f"http://gate/rollout/{offered['rollout_id']}/attempt/{offered['attempt_id']}/v1"
    assert seen[0] == (url, "first", 1, {"m": 1}, "gr-1")
    assert seen[1][1] == "third"


async def test_what_cannot_be_prepared_fails_the_attempt(bench: Any) -> None:
    bench.feed.publish({"x": {"resource_type": "warp_drive"}}, resources_id="rs-odd")
    ref = {"uri": "sha256/aa/" + "a" * 64, "sha256": "a" * 64, "length": 3}
    async with bench.runner(_async_none, resources_wait_seconds=0.3):
        missing = bench.feed.dispatch(resources_id="rs-never", resources_version=4)
        odd = bench.feed.dispatch(resources_id="rs-odd", resources_version=1)
        broken = bench.feed.dispatch(input="{")
        lost = bench.feed.dispatch(input="null", input_ref=ref)
        ends = [await bench.watch.wait_for_end(offer) for offer in (missing, odd, broken, lost)]
    assert [end["reason_code"] for end in ends] == [
        "unknown_resources",
        "unknown_resources",
        "bad_json",
        "blob_missing",
    ]
    assert "rs-never@4" in ends[0]["detail"] and "warp_drive" in ends[1]["detail"]
    assert bench.watch.statuses(missing) == ["preparing", "failed"]


async def test_a_large_task_is_read_from_the_blob_store(bench: Any) -> None:
    from agl_stream.producers.claim_check import ClaimCheck

    def agent(task: dict[str, str]) -> int:
        return len(task["text"])

    reference = ClaimCheck(bench.settings).keep(json.dumps({"text": "x" * 300_000}).encode())
    async with bench.runner(agent):
        end = await bench.watch.wait_for_end(bench.feed.dispatch(input="null", input_ref=reference))
    assert end["reward"] == 300_000


async def test_limits_end_async_agents_and_free_the_slot(bench: Any) -> None:
    cleaned_up = []

    async def agent(task: str) -> None:
        if task == "slow":
            try:
                await asyncio.sleep(600)
            finally:
                emitters.emit_message("cleaning up")
                cleaned_up.append(task)

    async with bench.runner(agent, runner_slots=1):
        started = time.monotonic()
        slow = bench.feed.dispatch("slow", timeout_seconds=0.4)
        await bench.watch.wait(lambda: bench.watch.statuses(slow))
        quick = bench.feed.dispatch("quick", timeout_seconds=30)
        end = await bench.watch.wait_for_end(slow)
        assert (await bench.watch.wait_for_end(quick))["status"] == "succeeded"
        assert time.monotonic() - started < 10
    assert (end["status"], end["reason_code"]) == ("timeout", "attempt_timeout")
    assert "timeout_seconds=0.4" in end["detail"]
    assert cleaned_up == ["slow"]
    (span,) = bench.watch.events("spans", attempt_id=slow["attempt_id"])
    assert span["kind"] == "message"


async def test_a_sync_agent_keeps_its_slot_until_it_returns(bench: Any) -> None:
    release = threading.Event()

    def agent(task: str) -> None:
        if task == "hung":
            assert release.wait(30)

    async with bench.runner(agent, runner_slots=1):
        hung = bench.feed.dispatch("hung", timeout_seconds=0.3)
        await bench.watch.wait(lambda: bench.watch.statuses(hung))
        waiting = bench.feed.dispatch("waiting")
        assert (await bench.watch.wait_for_end(hung))["status"] == "timeout"
        beats = len(bench.watch.events("workers"))
        await bench.watch.wait(lambda: len(bench.watch.events("workers")) >= beats + 2, "two more heartbeats")
        assert bench.watch.statuses(waiting) == []
        beat = bench.watch.events("workers")[-1]
        assert (beat["slots_free"], beat["attempts"]) == (0, [])
        release.set()
        assert (await bench.watch.wait_for_end(waiting))["status"] == "succeeded"
    assert bench.watch.statuses(hung).count("succeeded") == 0


async def test_cancel_reaches_running_and_waiting_attempts(bench: Any) -> None:
    started: list[str] = []

    async def agent(task: str) -> None:
        started.append(task)
        await asyncio.sleep(600)

    async with bench.runner(agent, runner_slots=1):
        running = bench.feed.dispatch("running")
        await bench.watch.wait(lambda: "running" in started)
        waiting = bench.feed.dispatch("waiting")
        bench.feed.control(waiting["rollout_id"])
        bench.feed.control(running["rollout_id"])
        end = await bench.watch.wait_for_end(running)
        after = bench.feed.dispatch("after")
        await bench.watch.wait(lambda: "after" in started)
        bench.feed.control(after["rollout_id"])
        await bench.watch.wait_for_end(after)
    assert (end["status"], end["reason_code"]) == ("failed", "cancelled")
    assert started == ["running", "after"]
    assert bench.watch.statuses(waiting) == []


async def test_a_cancel_from_before_the_start_is_known(bench: Any) -> None:
    ran: list[str] = []
    offered = bench.feed.dispatch("cancelled long ago")
    bench.feed.control(offered["rollout_id"])
    again = bench.feed.dispatch("asked for again")
    bench.feed.control(again["rollout_id"])
    bench.feed.control(again["rollout_id"], "requeue")
    async with bench.runner(lambda task: ran.append(task)):
        await bench.watch.wait_for_end(again)
    assert ran == ["asked for again"]


@pytest.mark.parametrize(
    ("status", "attempt", "reported"),
    [
        ("cancelled", {"attempt_number": 1}, ("failed", "cancelled")),
        ("running", {"attempt_number": 2}, ("failed", "attempt_fenced")),
        ("running", {"attempt_number": 1, "delivery": 2, "worker_instance": "another"}, None),
        ("failed", {"attempt_number": 1, "status": "timeout"}, None),
    ],
)
async def test_states_that_make_an_attempt_pointless_stop_it(
    bench: Any, status: str, attempt: dict[str, Any], reported: tuple[str, str] | None
) -> None:
    stopped = []

    async def agent(task: Any) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(task)

    async with bench.runner(agent):
        offered = bench.feed.dispatch("held")
        await bench.watch.wait(lambda: "running" in bench.watch.statuses(offered))
        bench.feed.state(offered, status, attempt)
        await bench.watch.wait(lambda: stopped, "the agent's end")
        if reported is not None:
            end = await bench.watch.wait_for_end(offered)
            assert (end["status"], end["reason_code"]) == reported
    if reported is None:
        assert bench.watch.end(offered) is None


async def test_an_agent_that_blocks_its_loop_is_not_vouched_for_and_is_timed_out(bench: Any) -> None:
    release = threading.Event()

    async def agent(task: str) -> None:
        if task == "blocks":
            release.wait(30)
        else:
            await asyncio.sleep(0)

    async with bench.runner(agent):
        offered = bench.feed.dispatch("blocks", timeout_seconds=2.0)
        held = [{"rollout_id": offered["rollout_id"], "attempt_id": offered["attempt_id"]}]
        await bench.watch.wait(lambda: "running" in bench.watch.statuses(offered))

        def beat_without() -> bool:
            return any(beat["attempts"] == [] and beat["slots_free"] == 7 for beat in bench.watch.events("workers"))

        await bench.watch.wait(beat_without, "a heartbeat that does not name the attempt")
        lags = [json.loads(beat["stats"])["agent_loop_lag_seconds"] for beat in bench.watch.events("workers")]
        assert max(lags) > 0.4
        assert (await bench.watch.wait_for_end(offered))["status"] == "timeout"
        release.set()
        assert (await bench.watch.wait_for_end(bench.feed.dispatch("after")))["status"] == "succeeded"
    assert any(beat["attempts"] == held for beat in bench.watch.events("workers"))
