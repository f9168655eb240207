"""What a user does in three terminals: up, a runner, tasks; then asks what happened. With the examples themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cli.running import Up, ports
from tests.producers.inference_server import InferenceServer

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[tuple[Up, InferenceServer]]:
    """`up` in front of a server that answers with token ids."""
    async with InferenceServer() as server:
        up = Up(folder, *ports(), "--upstream", server.url, "--upstream-model", "small")
        try:
            await _aside(up.endpoints)
            yield up, server
        finally:
            up.process.terminate()
            await _aside(up.process.wait)


async def _aside(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The server needs the event loop while a process is waited for."""
    import asyncio

    return await asyncio.to_thread(call, *args, **kwargs)


async def _until(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := await _aside(look)):
        assert time.monotonic() < deadline, "it did not happen"
    return found


async def test_tasks_of_a_file_and_of_a_foreign_producer_become_triplets(tmp_path: Path) -> None:
    async with system(tmp_path / "data") as (up, server):
        agent = f"{EXAMPLES}/03_own_agent/agent.py:ask_model"
        runner = await _aside(subprocess.Popen, up.command("runner", agent), stdout=subprocess.PIPE, text=True)
        try:
            tasks = str(EXAMPLES / "03_own_agent" / "tasks.jsonl")
            await _aside(up.agl, "produce", tasks)
            foreign = await _aside(_produce_without_us, up)

            def all_ended() -> dict[str, int] | None:
                found: dict[str, int] = up.agl("status", "--output", "json")["rollouts"]
                return found if sum(found.get(end, 0) for end in ("succeeded", "failed")) == 6 else None

            # the fifth task of the file lacks its answer, as its README says
            assert await _until(all_ended) == {"succeeded": 5, "failed": 1}
            assert {body["model"] for body, _ in server.calls} == {"small"}
            assert len(server.calls) >= 6

            def joined() -> Any:
                return up.agl("show", foreign, "--output", "json")["triplets"]

            (triplets,) = await _until(joined)
            assert len(triplets["triplets"]) == 1
            assert triplets["reward"] == 0.0
            story = await _aside(up.agl, "show", foreign)
            for part in ("requested", "attempt 1 dispatched", "succeeded", "1 triplet(s)"):
                assert part in story
            told = await _aside(up.agl, "tail", "triplets")
            assert foreign in told and "ro-onomatopoeia" in told
            assert "ValueError" not in told

            account = (await _aside(up.agl, "status", "--account", "--output", "json"))["account"]
            assert (account["requested"], account["in_flight"], account["failed"]) == (5, 4, {"agent_error": 1})
            assert account["balanced"]
            assert "5 requested = 0 trained" in await _aside(up.agl, "status", "--account")
        finally:
            runner.terminate()
            assert await _aside(runner.wait, 30) == 0


def _produce_without_us(up: Up) -> str:
    """The rollout_id of a task sent by the plain example."""
    endpoints = up.agl("doctor", "--output", "json")
    found = {setting["name"]: setting["value"] for setting in endpoints["settings"]}
    names = ("bootstrap_servers", "registry_url")
    environment = {**os.environ, **{f"AGL_STREAM_{name.upper()}": found[name] for name in names}}
    script = EXAMPLES / "02_plain_producer" / "produce_task.py"
    task = '{"word": "plain", "letter": "p", "answer": 1}'
    done = subprocess.run(
        [sys.executable, str(script), task], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
