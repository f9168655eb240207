"""Runners as a group: claims, rebalances, deaths, redeliveries, poison, draining and broker outages."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agl_stream.agents import as_agent
from agl_stream.consumers.runner import Runner, dispatch_consumer
from agl_stream.errors import AglStreamError, EngineUnreachable
from agl_stream.infra.embedded.testing import BrokerThread


def committed(settings: Any) -> dict[int, int]:
    """Offset the group of runners has committed on each dispatch partition; -1001 where none."""
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group("runners")})
    try:
        partitions = [TopicPartition(settings.topic("dispatch"), number) for number in range(settings.partitions)]
        return {found.partition: found.offset for found in consumer.committed(partitions, timeout=10)}
    finally:
        consumer.close()


async def test_an_agent_runs_only_after_its_claim_is_on_the_log_and_committed(bench: Any) -> None:
    seen: list[tuple[dict[int, int], int]] = []

    def agent(task: Any, rollout: Any) -> None:
        seen.append((committed(bench.settings), bench.watch_claims(rollout.attempt.attempt_id)))

    bench.watch_claims = lambda attempt: bench.watch.wait_blocking(
        lambda: len(bench.watch.events("attempts", attempt_id=attempt, status="preparing"))
    )
    async with bench.runner(agent):
        await bench.watch.wait_for_end(bench.feed.dispatch())
    ((offsets, claims),) = seen
    assert offsets[0] == 1
    assert claims == 1


_DIES_BEFORE_COMMIT = """
import asyncio, os, signal, sys
from agl_stream.agents import as_agent
from agl_stream.consumers.runner import Runner
from agl_stream.consumers.runner.dispatch_consumer import DispatchConsumer
from agl_stream.settings import Settings

async def die(self, positions):
    os.kill(os.getpid(), signal.SIGKILL)

DispatchConsumer._commit = die
asyncio.run(Runner(Settings.load(), as_agent(lambda task: print("ran", flush=True))).run())
"""


def environment(settings: Any) -> dict[str, str]:
    import os

    names = ("dir", "bootstrap_servers", "registry_url", "namespace", "heartbeat_seconds", "session_timeout_seconds")
    return {**os.environ, **{f"AGL_STREAM_{name.upper()}": str(getattr(settings, name)) for name in names}}


async def test_killed_between_claim_and_commit_somebody_else_runs_it_once(bench: Any) -> None:
    bench.settings = replace(bench.settings, session_timeout_seconds=1.5)
    offered = bench.feed.dispatch("once")
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DIES_BEFORE_COMMIT, env=environment(bench.settings), stdout=subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(dying.communicate(), 30)
    assert (dying.returncode, output) == (-signal.SIGKILL, b"")
    await bench.watch.wait(lambda: bench.watch.statuses(offered) == ["preparing"])
    ran: list[Any] = []
    async with bench.runner(lambda task: ran.append(task)):
        await bench.watch.wait_for_end(offered)
    assert ran == ["once"]
    claims = bench.watch.events("attempts", attempt_id=offered["attempt_id"], status="preparing")
    assert len({claim["worker_instance"] for claim in claims}) == 2
    # the second process took the place of the first, which lets the watchdog see that the first is gone
    assert len({claim["worker_id"] for claim in claims}) == 1


async def test_rebalances_while_rollouts_run_start_none_twice(bench: Any) -> None:
    ran: Counter[int] = Counter()

    async def agent(task: int) -> int:
        ran[task] += 1
        await asyncio.sleep(0.02 * (task % 10))
        return task

    offered = bench.feed.dispatch_many(list(range(60)))
    async with bench.runner(agent, runner_slots=4):
        await bench.watch.wait(lambda: len(ran) >= 5)
        async with bench.runner(agent, runner_slots=4):
            offered += bench.feed.dispatch_many(list(range(60, 120)))
            await bench.watch.wait(lambda: len(ran) >= 60)
        # one of the two has left again
        ends = await bench.watch.wait_for_ends(offered)
    assert set(ran.values()) == {1} and len(ran) == 120
    failed = [end for end in ends if end["status"] != "succeeded"]
    assert {end["reason_code"] for end in failed} <= {"runner_stopping"}
    assert sum(committed(bench.settings).values()) == 120


async def test_a_job_longer_than_the_poll_interval_runs_once_without_a_rebalance(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_consumer, "MAX_POLL_INTERVAL_SECONDS", 1.5)
    assigned: list[float] = []
    monkeypatch.setattr(
        dispatch_consumer.DispatchConsumer,
        "_assigned",
        _spy(dispatch_consumer.DispatchConsumer._assigned, assigned),
    )
    ran: list[Any] = []

    async def agent(task: Any) -> None:
        ran.append(task)
        await asyncio.sleep(3.2 if task == "long" else 0)

    async with bench.runner(agent, runner_slots=1):
        offered = bench.feed.dispatch("long")
        assert (await bench.watch.wait_for_end(offered))["status"] == "succeeded"
        assert (await bench.watch.wait_for_end(bench.feed.dispatch("next")))["status"] == "succeeded"
    assert (ran, len(assigned)) == (["long", "next"], 1)


def _spy(method: Any, calls: list[float]) -> Any:
    async def spy(self: Any, partitions: Any) -> None:
        calls.append(time.monotonic())
        await method(self, partitions)

    return spy


async def test_a_second_delivery_of_a_held_or_ended_attempt_does_not_run(bench: Any) -> None:
    ran: list[Any] = []
    release = threading.Event()

    def agent(task: Any) -> None:
        ran.append(task)
        release.wait(30)

    async with bench.runner(agent):
        offered = bench.feed.dispatch("once")
        await bench.watch.wait(lambda: ran)
        again = {name: offered[name] for name in ("rollout_id", "attempt_number")}
        bench.feed.dispatch("once", delivery=2, **again)
        # the runner takes note of the newer delivery, so that the lifecycle knows who holds it
        await bench.watch.wait(lambda: bench.watch.events("attempts", status="preparing", delivery=2))
        bench.feed.dispatch("once", delivery=1, **again)
        release.set()
        end = await bench.watch.wait_for_end(offered)
        bench.feed.dispatch("once", delivery=3, **again)
        await bench.watch.wait_for_end(bench.feed.dispatch("last"))
        await bench.watch.wait(lambda: sum(committed(bench.settings).values()) >= 5 - 2, "commits past the copies")
    assert (end["status"], end["delivery"]) == ("succeeded", 2)
    assert ran == ["once", "last"]


async def test_poison_is_rejected_and_the_rest_runs(bench: Any) -> None:
    bench.feed.garbage(b"not avro at all")
    bench.feed.garbage(b"\x00\x00\x00\x27\x0fbody")
    bench.feed.garbage(bench.codec.encode("ControlRequested", {"rollout_id": "ro-1", "action": "cancel"}))
    async with bench.runner(lambda task: 1.0):
        await bench.watch.wait_for_end(bench.feed.dispatch())
        rejects = await bench.watch.wait(
            lambda: len(found := bench.watch.events("rejects")) == 3 and found, "three rejects"
        )
    assert {reject["reason_code"] for reject in rejects} == {"not_framed", "unknown_schema", "wrong_event"}
    assert {(reject["source_topic"], reject["rejected_by"]) for reject in rejects} == {("dispatch", "runner")}


async def test_a_flood_of_poison_stops_the_runner(bench: Any) -> None:
    for _ in range(30):
        bench.feed.garbage(b"poison")
    runner = Runner(replace(bench.settings, reject_limit_consecutive=20), as_agent(lambda task: None))
    with pytest.raises(AglStreamError, match="20 records in a row"):
        await asyncio.wait_for(runner.run(), 30)


async def test_draining_finishes_what_runs_and_takes_no_more(bench: Any) -> None:
    async def agent(task: float) -> float:
        await asyncio.sleep(task)
        return task

    async with bench.runner(agent) as runner:
        running = bench.feed.dispatch(1.0)
        await bench.watch.wait(lambda: "running" in bench.watch.statuses(running))
        runner.request_stop()
        await bench.watch.wait(lambda: bench.watch.events("workers", status="stopping"), "the group left")
        later = bench.feed.dispatch(0.0)
        assert (await bench.watch.wait_for_end(running))["status"] == "succeeded"
    assert bench.watch.statuses(later) == []
    await bench.watch.wait(lambda: bench.watch.events("workers", status="stopped"))


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
async def test_what_does_not_finish_in_the_drain_time_fails_as_infrastructure(bench: Any, blocking: bool) -> None:
    release = threading.Event()

    async def waits(task: Any) -> None:
        await asyncio.sleep(600)

    def blocks(task: Any) -> None:
        release.wait(30)

    started = time.monotonic()
    async with bench.runner(blocks if blocking else waits, drain_seconds=0.3) as runner:
        offered = bench.feed.dispatch()
        await bench.watch.wait(lambda: "running" in bench.watch.statuses(offered))
        runner.request_stop()
        end = await bench.watch.wait_for_end(offered)
    release.set()
    assert (end["status"], end["reason_code"]) == ("failed", "runner_stopping")
    assert time.monotonic() - started < 15


async def test_a_second_request_stops_at_once(bench: Any) -> None:
    async def agent(task: Any) -> None:
        await asyncio.sleep(600)

    async with bench.runner(agent, drain_seconds=600.0) as runner:
        offered = bench.feed.dispatch()
        await bench.watch.wait(lambda: "running" in bench.watch.statuses(offered))
        runner.request_stop()
        runner.request_stop()
        end = await bench.watch.wait_for_end(offered)
    assert end["reason_code"] == "runner_stopping"


async def test_a_broker_that_is_away_loses_nothing(bench: Any, make_bench: Any, tmp_path: Path) -> None:
    """Taken before the outage, ended during it, reported after it; and work goes on."""
    release = threading.Event()
    ran: list[Any] = []

    def agent(task: Any) -> float:
        ran.append(task)
        assert task != "during" or release.wait(30)
        return 1.0

    with BrokerThread(tmp_path / "log") as first:
        port = int(first.bootstrap_servers.rpartition(":")[2])
        settings = replace(bench.settings, bootstrap_servers=first.bootstrap_servers)
        own = make_bench(settings)
        running = own.runner(agent)
        await running.__aenter__()
        during = own.feed.dispatch("during")
        await own.watch.wait(lambda: "during" in ran)
    release.set()
    await asyncio.sleep(1.0)
    with BrokerThread(tmp_path / "log", port=port):
        assert (await own.watch.wait_for_end(during))["status"] == "succeeded"
        after = own.feed.dispatch("after")
        assert (await own.watch.wait_for_end(after))["status"] == "succeeded"
        await running.__aexit__(None, None, None)
        own.close()
    assert ran == ["during", "after"]


async def test_without_broker_or_topics_the_start_fails_and_says_so(bench: Any) -> None:
    nowhere = replace(bench.settings, bootstrap_servers="127.0.0.1:1", connect_timeout_seconds=0.5)
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_BOOTSTRAP_SERVERS"):
        await asyncio.wait_for(Runner(nowhere, as_agent(print)).run(), 30)
    no_topics = replace(bench.settings, namespace="nothing-here", connect_timeout_seconds=0.5)
    with pytest.raises(EngineUnreachable, match="topics apply"):
        await asyncio.wait_for(Runner(no_topics, as_agent(print)).run(), 30)
    no_registry = replace(bench.settings, registry_url="http://127.0.0.1:1")
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_REGISTRY_URL"):
        await asyncio.wait_for(Runner(no_registry, as_agent(print)).run(), 60)
