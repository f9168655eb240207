"""The loop with real parts: broker, serve process, trainer process, an agent that calls the model; and their deaths."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_feeder import Feeder, agent

from agl_stream.settings import Settings
from agl_stream.trainer.manifest import verify_chain

pytestmark = [pytest.mark.train, pytest.mark.faults, pytest.mark.slow]

Event = dict[str, Any]


class Verb:
    """One `agl-stream` process; ``lines`` is what it has written on stdout."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._command = [sys.executable, "-m", "agl_stream.cli.main", *arguments]
        self._environment = environment
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)

    def wait_for(self, pattern: str, seconds: float = 90.0) -> str:
        """The first line that matches; fails when the process ends or time runs out without one."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            assert not ended, f"ended with {self.process.returncode}: {self.lines}"
            assert time.monotonic() < deadline, f"no line like {pattern!r} in {self.lines}"
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def end(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def verbs(settings: Settings) -> Iterator[Callable[..., Verb]]:
    started: list[Verb] = []
    port = str(free_port())
    environment = {
        **os.environ,
        "AGL_STREAM_DIR": settings.dir,
        "AGL_STREAM_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "AGL_STREAM_REGISTRY_URL": settings.registry_url,
        "AGL_STREAM_NAMESPACE": settings.namespace,
        "AGL_STREAM_UPSTREAM_URL": f"http://127.0.0.1:{port}/v1",
        "AGL_STREAM_HEARTBEAT_SECONDS": "1",
    }

    def start(*arguments: str) -> Verb:
        started.append(Verb(environment, *(argument.replace("PORT", port) for argument in arguments)))
        return started[-1]

    yield start
    for verb in started:
        if verb.process.poll() is None:
            verb.kill()


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_server_and_trainer_are_killed_in_the_middle_and_each_step_is_trained_once(
    settings: Settings,
    verbs: Callable[..., Verb],
    read: Callable[..., list[Event]],
    model_dir: Path,
    tmp_path: Path,
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"input": "{n}+{n}="}}\n' for n in range(10)))
    server = verbs("serve", "--model", str(model_dir), "--port", "PORT", "--resources-id", "policy")
    trainer = verbs(
        *("trainer", "--model", str(model_dir), "--tasks", str(tasks), "--steps", "6"),
        *("--prompts", "4", "--samples", "4", "--learning-rate", "0.01"),
    )
    url = server.wait_for("serve ready").split()[3].rstrip(",")
    with Feeder(settings, agent_with_patience(url)) as feeder:
        trainer.wait_for("step 2 ")
        server.kill()
        server.start()
        trainer.wait_for("step 4 ")
        trainer.kill()
        trainer.lines.clear()
        trainer.start()
        trainer.wait_for("trained 6 steps, version 7")
        assert trainer.process.wait(30) == 0
    assert server.end() == 0
    manifests = read("batches")
    assert verify_chain(manifests) == 6
    settled = [outcome for m in {m["step"]: m for m in manifests}.values() for outcome in m["rollouts"]]
    assert sorted(outcome["rollout_id"] for outcome in settled) == sorted(feeder.played)
    assert len(settled) == 6 * 16
    metrics = [json.loads(manifest["metrics"]) for manifest in manifests]
    assert all(m["max_logprob_diff"] < 1e-3 for m in metrics), "responses are those of the version being trained"
    assert all(m["served_logprob_diff"] < 1e-3 for m in metrics)
    assert max(event["version"] for event in read("resources")) == 7
    for event in feeder.played.values():
        assert [t["resources_version"] for t in event["triplets"]] == [event["resources_version"]]


def agent_with_patience(url: str) -> Callable[[Event], Event]:
    """The agent, behind what a gateway would do while the server is away: ask again."""
    play = agent(url)

    def patient(request: Event) -> Event:
        deadline = time.monotonic() + 60
        while True:
            try:
                event = play(request)
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                assert event is not None
                return event

    return patient


def test_a_taken_port_is_known_before_the_model_is_loaded(verbs: Callable[..., Verb], model_dir: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert verbs("serve", "--model", str(model_dir), "--port", port).process.wait(60) == 1
