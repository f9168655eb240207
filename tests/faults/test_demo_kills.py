"""Every process of a demo is killed with SIGKILL in the middle of a step, one after the other, in one run.

The run has to end as if nothing had happened: every step trained exactly once, every rollout accounted for. One run
for all victims, since its start (torch, verl) takes longer than all the recoveries; what each kill led to is
recorded and judged in a test of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agl_stream.demo.monitor import Monitor
from agl_stream.settings import Settings
from agl_stream.trainer.manifest import verify_chain

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.train, pytest.mark.timeout(420)]

VICTIMS = {
    "registry": "cli.main registry",
    "runner-1": "cli.main runner",
    "gateway": "cli.main gateway",
    "lifecycle": "--only lifecycle",
    "sink": "--only sink",
    "joiner": "--only joiner",
    "broker": "cli.main broker",
    "serve": "cli.main serve",
    "trainer": "cli.main trainer",
}
"""Name below the supervisor -> what its command line holds."""

STEPS, PROMPTS, SAMPLES = 40, 4, 4
_START_SECONDS, _RECOVERY_SECONDS, _END_SECONDS = 180.0, 90.0, 120.0


@dataclass
class Story:
    """What happened in the run."""

    recovery_seconds: dict[str, float] = field(default_factory=dict[str, float])
    result: dict[str, Any] = field(default_factory=dict[str, Any])
    manifests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    trained_in: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    exit_status: int | None = None
    left_running: list[int] = field(default_factory=list[int])
    told: str = ""


def children(pid: int) -> dict[int, str]:
    """Process id -> command line of the children of all threads of a process."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except FileNotFoundError:
                continue
            found[int(child)] = command.replace(b"\0", b" ").decode()
    return found


class Run:
    """A demo as a process, watched from outside through its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        size = ["--steps", str(STEPS), "--prompts", str(PROMPTS), "--samples", str(SAMPLES)]
        self.told = (folder.parent / "stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agl_stream.cli.main", "demo", *size, "--keep", str(folder), "--output", "json"],
            stdout=subprocess.PIPE,
            stderr=self.told,
            text=True,
        )

    def monitor(self) -> Monitor:
        """Once the demo has published its endpoints."""
        endpoints = self.folder / "endpoints.json"
        self.until(endpoints.exists, _START_SECONDS, "the system is up")
        (run_id,) = (path.name for path in (self.folder / "tasks").iterdir())
        return Monitor(Settings.load(dir=str(self.folder)), run_id, STEPS)

    def until(self, condition: Any, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the demo ended before {what}:\n{self.said()}"
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.said()}"
            time.sleep(0.02)

    def said(self) -> str:
        self.told.flush()
        return Path(self.told.name).read_text()

    def kill(self, victim: str) -> None:
        def pid() -> int | None:
            matching = [p for p, command in children(self.process.pid).items() if VICTIMS[victim] in command]
            return matching[0] if matching else None

        self.until(pid, 30, f"{victim} runs")
        os.kill(pid() or 0, signal.SIGKILL)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    seed = int(os.environ.get("AGL_TEST_SEED", random.randrange(10_000)))
    print(f"AGL_TEST_SEED={seed}")
    rng = random.Random(seed)
    told = Story()
    run = Run(tmp_path_factory.mktemp("demo") / "data")
    processes: list[int] = []
    try:
        monitor = run.monitor()

        def steps() -> int:
            monitor.look(0.02)
            return len(monitor.progress.steps)

        def ended() -> int:
            monitor.look(0.02)
            return len(monitor.progress.ended_rollouts)

        def wait_for(condition: Any, what: str) -> None:
            run.until(condition, _RECOVERY_SECONDS, what)

        run.until(lambda: steps() >= 1, _START_SECONDS, "the first step is trained")
        for victim in VICTIMS:
            in_the_middle = len(monitor.progress.ended_rollouts) + rng.randint(1, PROMPTS * SAMPLES - 2)
            wait_for(lambda goal=in_the_middle: ended() >= goal, f"rollouts end before {victim} is killed")
            killed_at = time.monotonic()
            run.kill(victim)
            # Two steps on: the first of them may have had all it needs from the victim before the kill.
            two_on = min(steps() + 2, STEPS)
            wait_for(lambda goal=two_on: steps() >= goal, f"{victim} has recovered")
            told.recovery_seconds[victim] = time.monotonic() - killed_at
        processes = list(children(run.process.pid))
        run.until(lambda: steps() >= STEPS, _END_SECONDS, "all steps are trained")
        out, _ = run.process.communicate(timeout=_END_SECONDS)
        told.exit_status = run.process.returncode
        told.result = json.loads(out)
        told.manifests = list(monitor.progress.manifests.values())
        for manifest in told.manifests:
            for rollout in manifest["rollouts"]:
                if rollout["outcome"] == "trained":
                    told.trained_in.setdefault(rollout["rollout_id"], set()).add(manifest["step"])
        told.left_running = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.wait(60)
        told.told = run.said()
        run.told.close()
    print(told.told)
    print("seconds to two steps on:", {name: round(s, 1) for name, s in told.recovery_seconds.items()})
    yield told


@pytest.mark.parametrize("victim", VICTIMS)
def test_training_goes_on_after_a_kill_and_the_victim_is_started_again(story: Story, victim: str) -> None:
    assert story.recovery_seconds[victim] < _RECOVERY_SECONDS
    assert story.result["restarts"].get(victim) == 1, story.told


def test_nothing_else_died(story: Story) -> None:
    assert set(story.result["restarts"]) == set(VICTIMS), story.told


def test_every_rollout_is_accounted_for(story: Story) -> None:
    rollouts = story.result["rollouts"]
    assert rollouts["requested"] == STEPS * PROMPTS * SAMPLES
    assert rollouts["in_flight"] == 0
    assert sum(count for name, count in rollouts.items() if name != "requested") == rollouts["requested"]


def test_each_step_was_trained_once_and_each_rollout_in_one_step(story: Story) -> None:
    assert story.result["steps"] == STEPS
    assert verify_chain(story.manifests) == STEPS
    assert all(len(steps) == 1 for steps in story.trained_in.values())
    assert len(story.trained_in) == story.result["rollouts"]["trained"]


def test_a_kill_costs_at_most_the_attempts_it_interrupted(story: Story) -> None:
    """Attempts that a dead runner held are tried again, so no rollout need fail of it."""
    assert story.result["rollouts"]["failed"] == 0, story.result["reasons"]
    assert story.result["rollouts"]["trained"] == STEPS * PROMPTS * SAMPLES, story.result["reasons"]


def test_the_demo_finds_no_problem_but_perhaps_a_reward_that_small_steps_do_not_raise(story: Story) -> None:
    others = [problem for problem in story.result["problems"] if "reward did not rise" not in problem]
    assert others == []
    assert story.exit_status == (0 if story.result["ok"] else 1)
    assert story.result["max_logprob_diff"] < 1e-3


def test_nothing_is_left_running(story: Story) -> None:
    assert story.left_running == []


def test_ctrl_c_ends_a_demo_cleanly(tmp_path: Path) -> None:
    run = Run(tmp_path / "data")
    run.until(lambda: len(children(run.process.pid)) >= 5, _START_SECONDS, "most processes are being started")
    processes = list(children(run.process.pid))
    run.process.send_signal(signal.SIGINT)
    out, _ = run.process.communicate(timeout=60)
    assert (run.process.returncode, out) == (130, "")
    assert "Traceback" not in run.said()
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    run.told.close()
