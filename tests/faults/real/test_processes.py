"""Our own processes under load: paused beyond their session, replaced one after the other, without a registry."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.faults.real.load import QUICK, Load

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

ALL = ("lifecycle", "sink", "joiner", "gateway", "runner-1", "runner-2", "learner")


@pytest.mark.parametrize("name", ["lifecycle", "sink", "joiner", "runner-1", "learner"])
def test_pause_beyond_the_session(load: Load, name: str) -> None:
    """What comes back has been given up meanwhile: it must neither undo nor repeat what others did."""
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        with load.paused(name):
            time.sleep(QUICK["session_timeout_seconds"] + 3)  # how long it is gone is what is tested
        load.progress(12)
    load.settle(f"{name} paused for {QUICK['session_timeout_seconds'] + 3:g} s", since)


def test_rolling_restart_of_all_processes(load: Load) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        for name in ALL:
            load.replaced(name, signal.SIGTERM)
        load.progress(12)
    load.settle("rolling restart of all our processes", since, restarted=ALL)


def test_registry_gone_and_processes_started_without_it(load: Load) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        load.registry.kill()
        for name in ("sink", "runner-1"):
            pid = load.pid(name)
            os.kill(pid, signal.SIGKILL)
            load.until(lambda name=name, pid=pid: load.supervisor.pids().get(name, pid) != pid, 30, f"a new {name}")
        load.progress(8)
        load.registry.start()
        load.registry.wait_ready()
        load.until(lambda: load.supervisor.ready_line("sink") and load.supervisor.ready_line("runner-1"), 90, "ready")
        load.progress(8)
    load.settle("registry gone while sink and a runner start", since, restarted=("sink", "runner-1"))
