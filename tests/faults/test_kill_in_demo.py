"""kill -9 of any one process in the middle of a demo: it is restarted, and the run ends complete and balanced."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_stream.settings import Settings
from agl_stream.streams.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.train, pytest.mark.timeout(240)]

STEPS, PROMPTS, SAMPLES = 5, 4, 4
VICTIMS = {
    "broker": "broker --port",
    "registry": "registry --port",
    "lifecycle": "streams --only lifecycle",
    "sink": "streams --only sink",
    "gateway": "gateway --port",
    "serve": "serve --model",
    "runner-1": "runner agl_stream",
    "trainer": "trainer --model",
}


class Demo:
    """A running `agl-stream demo` whose progress lines can be waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agl_stream.cli.main", "demo", "--output", "json", "--keep", str(folder)),
                *("--steps", str(STEPS), "--prompts", str(PROMPTS), "--samples", str(SAMPLES)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, part: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            assert line is not None, f"the demo ended before {part!r}:\n{''.join(self.seen)}"
            self.seen.append(line)
            if part in line:
                return

    def kill(self, arguments: str) -> None:
        os.kill(self._child(arguments), signal.SIGKILL)

    def _child(self, arguments: str) -> int:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, IndexError):
                continue
            if parent == self._process.pid and f"agl_stream.cli.main {arguments}" in command:
                return int(entry.name)
        raise AssertionError(f"the demo has no child {arguments!r}")

    def result(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        reader: queue.SimpleQueue[str] = queue.SimpleQueue()
        stdout = self._process.stdout
        threading.Thread(target=lambda: reader.put(stdout.read()), daemon=True).start()
        try:
            text = reader.get(timeout=timeout_seconds)
        except queue.Empty:
            raise AssertionError(f"the demo hangs:\n{''.join(self.seen)}{self._rest()}") from None
        assert text, f"the demo printed no result:\n{''.join(self.seen)}{self._rest()}"
        return json.loads(text)

    def _rest(self) -> str:
        rest = []
        while not self._lines.empty():
            rest.append(self._lines.get() or "")
        return "".join(rest)

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(tmp_path / "demo")
    yield running
    running.end()


@pytest.mark.parametrize("victim", VICTIMS)
def test_demo_survives_the_death_of(victim: str, demo: Demo) -> None:
    demo.wait_for_line("[training]", 120)
    demo.kill(VICTIMS[victim])
    result = demo.result(180)

    asked = STEPS * PROMPTS * SAMPLES
    assert result["restarts"].get(victim) == 1, result["restarts"]
    assert result["steps"] == STEPS
    assert result["rollouts"] == {
        "requested": asked,
        "trained": asked,
        "dropped": 0,
        "failed": 0,
        "cancelled": 0,
        "in_flight": 0,
    }
    # five steps are too few for the reward to have to rise; everything else must be in order
    assert [problem for problem in result["problems"] if "reward" not in problem] == []
    check_each_step_trained_once(demo.folder)


def check_each_step_trained_once(folder: Path) -> None:
    store = open_store(Settings.load(dir=str(folder)), read_only=True)
    try:
        batches = store.batches()
    finally:
        store.close()
    assert [batch["step"] for batch in batches] == list(range(1, STEPS + 1))
    times_trained = Counter(r["rollout_id"] for b in batches for r in b["rollouts"] if r["outcome"] == "trained")
    assert set(times_trained.values()) == {1}
    assert [b["previous_hash"] for b in batches[1:]] == [b["manifest_hash"] for b in batches[:-1]]
