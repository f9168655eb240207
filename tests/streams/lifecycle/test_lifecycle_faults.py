"""Kills in the middle of the work: no rollout is lost, none is decided twice, every state comes out as planned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.ids import derived
from agl_stream.settings import Settings
from agl_stream.supervise.ports import free_ports

from .system import LogView, PlannedRunner, Worker, fresh_settings, wait_for
from .test_lifecycle_app import config

pytestmark = pytest.mark.faults

RETRY = config(max_attempts=3, retry_condition=["failed", "timeout"])


def plan(rollout_id: str, number: int) -> tuple[str, dict[str, Any]]:
    """A fixed end for each attempt: most succeed, some need another try, some use all of them up."""
    draw = int(derived(2, "plan", rollout_id), 16)
    if draw < 40 and number < 3:
        return ("timeout", {"reason_code": "attempt_timeout"}) if draw % 2 else failed()
    if 40 <= draw < 50:
        return failed()
    return "succeeded", {"reward": draw / 256}


def failed() -> tuple[str, dict[str, Any]]:
    return "failed", {"reason_code": "agent_error", "detail": "ValueError: no"}


def expected(rollout_id: str) -> tuple[str, list[str], float | None]:
    """Status, the attempts' statuses, the reward."""
    statuses: list[str] = []
    for number in (1, 2, 3):
        status, fields = plan(rollout_id, number)
        statuses.append(status)
        if status == "succeeded":
            return "succeeded", statuses, fields["reward"]
    return "failed", statuses, None


def check_outcome(view: LogView, rollout_ids: list[str]) -> None:
    """Exact states, and offers that follow the plan."""
    states = view.states()
    assert set(states) == set(rollout_ids)
    for rollout_id in rollout_ids:
        state = states[rollout_id]
        status, statuses, reward = expected(rollout_id)
        assert (state["status"], [a["status"] for a in state["attempts"]]) == (status, statuses), rollout_id
        assert state["attempts"][-1]["reward"] == reward
        assert [a["delivery"] for a in state["attempts"]] == [1] * len(statuses)
    offered: dict[str, set[int]] = {rollout_id: set() for rollout_id in rollout_ids}
    places: dict[str, set[int]] = {}
    for partition, offer in view.records["dispatch"]:
        offered[offer["rollout_id"]].add(offer["attempt_number"])
        places.setdefault(offer["attempt_id"], set()).add(partition)
    assert {key: len(expected(key)[1]) for key in rollout_ids} == {
        key: len(numbers) for key, numbers in offered.items()
    }
    # an offer made again after a crash goes to the runner that got the first
    assert all(len(partitions) == 1 for partitions in places.values())
    # one version, one content: what was announced before a kill is what was announced after it
    contents: dict[tuple[str, int], dict[str, Any]] = {}
    for event in view.events("rollouts"):
        known = contents.setdefault((event["rollout_id"], event["version"]), event)
        assert {**known, "producer": None} == {**event, "producer": None}


def enqueue(producer: EventProducer, count: int, name: str) -> list[str]:
    rollout_ids = [f"ro-{derived(12, name, index)}" for index in range(count)]
    for rollout_id in rollout_ids:
        producer.send("rollout-requests", {"rollout_id": rollout_id, "input": '"task"', "config": RETRY})
    producer.flush()
    return rollout_ids


@pytest.fixture
def settings(broker: BrokerThread, tmp_path: Path) -> Settings:
    return fresh_settings(tmp_path, broker.bootstrap_servers, broker.registry_url)


@pytest.fixture
def world(settings: Settings) -> Iterator[tuple[EventProducer, LogView]]:
    with (
        EventProducer(settings, name="test", linger_ms=2.0) as producer,
        LogView(settings, "rollouts", "dispatch", "rejects") as view,
    ):
        PlannedRunner(producer, view, plan)
        yield producer, view


def all_ended(view: LogView, count: int) -> bool:
    statuses = view.statuses()
    return statuses["succeeded"] + statuses["failed"] >= count


@pytest.mark.parametrize(("store", "kills"), [("memory", (60, 180)), ("rocksdb", (80,))])
def test_kill_nine_in_mid_stream(
    settings: Settings, world: tuple[EventProducer, LogView], store: str, kills: tuple[int, ...]
):
    producer, view = world
    with ExitStack() as stack:
        worker = stack.enter_context(Worker(settings, lifecycle_store=store)).wait_ready()
        rollout_ids = enqueue(producer, 300, "first")
        for wanted in kills:
            wait_for(lambda wanted=wanted: all_ended(view, wanted), 30, f"{wanted} rollouts ended")
            worker.kill()
            rollout_ids += enqueue(producer, 150, f"after {wanted}")
            started = time.monotonic()
            worker = stack.enter_context(Worker(settings, lifecycle_store=store)).wait_ready()
            assert time.monotonic() - started < 20, "the name in the group is stable, so nobody waits for a dead member"
        wait_for(lambda: all_ended(view, len(rollout_ids)), 40, f"all {len(rollout_ids)} ended: {view.statuses()}")
        assert worker.terminate() == 0
    check_outcome(view, rollout_ids)
    assert view.events("rejects") == []


def test_two_workers_share_and_take_over(settings: Settings, world: tuple[EventProducer, LogView]):
    producer, view = world
    with ExitStack() as stack:
        first = stack.enter_context(Worker(settings)).wait_ready()
        rollout_ids = enqueue(producer, 200, "one")
        wait_for(lambda: all_ended(view, 50), 30, "some ended")
        second = stack.enter_context(Worker(settings)).wait_ready()
        rollout_ids += enqueue(producer, 200, "two")
        wait_for(lambda: all_ended(view, 300), 30, f"most ended: {view.statuses()}")
        first.kill()
        rollout_ids += enqueue(producer, 100, "three")
        wait_for(lambda: all_ended(view, len(rollout_ids)), 40, f"all ended: {view.statuses()}")
        assert second.process.poll() is None
    check_outcome(view, rollout_ids)


class BrokerProcess:
    """The embedded broker as a process on a fixed port and folder."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self._folder = folder
        self.start()

    def start(self) -> None:
        command = ["broker", "--port", str(self.port), "--dir", str(self._folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agl_stream.cli.main", *command], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert self.process.stdout is not None
        assert b"ready" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


def test_the_broker_is_killed_for_seconds(registry_url: str, tmp_path: Path):
    engine = BrokerProcess(tmp_path / "engine")
    try:
        settings = fresh_settings(tmp_path / "data", f"127.0.0.1:{engine.port}", registry_url)
        with (
            EventProducer(settings, name="test", linger_ms=2.0) as producer,
            LogView(settings, "rollouts", "dispatch", "rejects") as view,
            ExitStack() as stack,
        ):
            PlannedRunner(producer, view, plan)
            worker = stack.enter_context(Worker(settings)).wait_ready()
            rollout_ids = enqueue(producer, 200, "before")
            wait_for(lambda: all_ended(view, 50), 30, "some ended")
            engine.kill()
            time.sleep(3.0)
            engine.start()
            rollout_ids += enqueue(producer, 100, "after")
            deadline = time.monotonic() + 60
            while not all_ended(view, len(rollout_ids)):
                assert time.monotonic() < deadline, f"{view.statuses()}; {worker.output()[-2000:]}"
                if worker.process.poll() is not None:
                    # giving up is allowed, hanging is not: the supervisor starts it again
                    assert worker.process.returncode != 0
                    worker = stack.enter_context(Worker(settings)).wait_ready()
                time.sleep(0.1)
            check_outcome(view, rollout_ids)
            assert Counter(e["reason_code"] for e in view.events("rejects")) == {}
    finally:
        engine.kill()


def test_no_broker_is_said_at_once(tmp_path: Path):
    settings = Settings.load(
        dir=str(tmp_path),
        bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}",
        connect_timeout_seconds=2.0,
    )
    with Worker(settings) as worker:
        assert worker.process.wait(30) == 3
        assert "AGL_STREAM_BOOTSTRAP_SERVERS" in worker.output()
