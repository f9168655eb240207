"""`agl-stream runner` as people start it: a process, its lines, signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AGENT = """
import asyncio, time

async def agent(task):
    await asyncio.sleep(task)
    return task

def stubborn(task):
    time.sleep(600)
"""


class Processes:
    def __init__(self, settings: Any, folder: Path) -> None:
        names = (
            "dir",
            "bootstrap_servers",
            "registry_url",
            "namespace",
            "heartbeat_seconds",
            "session_timeout_seconds",
        )
        own = {f"AGL_STREAM_{name.upper()}": str(getattr(settings, name)) for name in names}
        self.environment = {**os.environ, **own}
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agl_stream.cli.main", "runner", *arguments],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def ready(self, *arguments: str) -> subprocess.Popen[str]:
        process = self.start(*arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, process.communicate()[1]
        return process


@pytest.fixture
def processes(bench: Any, tmp_path: Path) -> Iterator[Processes]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my_agent.py").write_text(AGENT)
    made = Processes(bench.settings, folder)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_sigterm_lets_running_rollouts_finish_and_ends_with_0(bench: Any, processes: Processes) -> None:
    runner = processes.ready("my_agent:agent", "--name", "one")
    offered = bench.feed.dispatch(1.0)
    bench.watch.wait_blocking(lambda: "running" in bench.watch.statuses(offered))
    runner.terminate()
    output, errors = runner.communicate(timeout=30)
    assert (runner.returncode, output) == (0, ""), errors
    end = bench.watch.wait_blocking(lambda: bench.watch.end(offered))
    assert (end["status"], end["reward"], end["worker_id"]) == ("succeeded", 1.0, "one")


def test_a_second_sigterm_ends_it_at_once_even_if_an_agent_hangs(bench: Any, processes: Processes) -> None:
    runner = processes.ready("my_agent.py:stubborn")
    offered = bench.feed.dispatch()
    bench.watch.wait_blocking(lambda: "running" in bench.watch.statuses(offered))
    runner.terminate()
    bench.watch.wait_blocking(lambda: bench.watch.events("workers", status="stopping"))
    started = time.monotonic()
    runner.terminate()
    runner.communicate(timeout=30)
    assert time.monotonic() - started < 15
    end = bench.watch.wait_blocking(lambda: bench.watch.end(offered))
    assert (end["status"], end["reason_code"]) == ("failed", "runner_stopping")


def test_killed_and_started_again_it_is_the_same_worker_without_the_attempt(bench: Any, processes: Processes) -> None:
    first = processes.ready("my_agent:agent", "--name", "phoenix")
    lost = bench.feed.dispatch(600)
    bench.watch.wait_blocking(lambda: "running" in bench.watch.statuses(lost))
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed_at = time.monotonic()
    processes.ready("my_agent:agent", "--name", "phoenix")

    def instances() -> set[str]:
        return {beat["worker_instance"] for beat in bench.watch.events("workers")}

    bench.watch.wait_blocking(lambda: len(instances()) == 2)
    beats = bench.watch.events("workers")
    assert {beat["worker_id"] for beat in beats} == {"phoenix"}
    assert beats[-1]["attempts"] == []
    after = [bench.feed.dispatch(0) for _ in range(4)]
    for offered in after:
        bench.watch.wait_blocking(lambda offered=offered: bench.watch.end(offered))
    # a static member takes its partitions back without waiting for the session to time out
    assert time.monotonic() - killed_at < bench.settings.session_timeout_seconds + 3
    assert bench.watch.statuses(lost) == ["preparing", "running"]


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (["no_such:agent"], {}, 2, "no module 'no_such'"),
        (["my_agent:nobody"], {}, 2, "my_agent has no 'nobody'"),
        (["my_agent:agent", "--slots", "0"], {}, 2, "slots"),
        (["my_agent:agent", "--name", "a b"], {}, 2, "cannot name a runner"),
        (
            ["my_agent:agent"],
            {"AGL_STREAM_BOOTSTRAP_SERVERS": "127.0.0.1:1", "AGL_STREAM_CONNECT_TIMEOUT_SECONDS": "0.5"},
            3,
            "AGL_STREAM_BOOTSTRAP_SERVERS",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    processes: Processes, arguments: list[str], environment: dict[str, str], code: int, said: str
) -> None:
    process = processes.start(*arguments, **environment)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, "")
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors
