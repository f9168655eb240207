"""The commands of this room as processes: produce, gateway, and the example that uses neither."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from agl_stream.schemas.registry import RegistryClient
from agl_stream.settings import Settings
from tests.producers.conftest import Log
from tests.producers.inference_server import PIECES, InferenceServer

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "agl_stream.cli.main"]


@pytest.fixture(scope="module")
def environment(settings: Settings) -> dict[str, str]:
    # As an installation has it: schemas are there, and no process registers any.
    RegistryClient(settings.registry_url, namespace=settings.namespace).register_all()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGL_STREAM_")}
    return {
        **kept,
        "AGL_STREAM_DIR": settings.dir,
        "AGL_STREAM_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "AGL_STREAM_REGISTRY_URL": settings.registry_url,
        "AGL_STREAM_NAMESPACE": settings.namespace,
        "AGL_STREAM_CONNECT_TIMEOUT_SECONDS": "2",
    }


def run(arguments: list[str], environment: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment, input=stdin, capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def test_produce_reads_a_file_and_tells_what_was_wrong(environment, log: Log, tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"input": {"q": 1}, "rollout_id": "ro-cli-1"}\n{nope\n"plain"\n')
    done = run(["produce", str(file), "--mode", "val", "--run-id", "r", "--output", "json"], environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{file}:2: not JSON")
    told = json.loads(done.stdout)
    assert (told["produced"], told["rejected"], told["rollout_ids"][0]) == (2, 1, "ro-cli-1")
    event = log.events("rollout-requests", "ro-cli-1")[0]
    assert (event["mode"], event["run_id"], event["producer"]["name"]) == ("val", "r", "produce")
    assert json.loads(log.events("rollout-requests", told["rollout_ids"][1])[0]["input"]) == "plain"


def test_produce_reads_stdin_in_groups(environment, log: Log):
    done = run(["produce", "-", "--group-size", "3"], environment, stdin='{"input": 1, "group_id": "gr-cli"}\n')
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 rollouts enqueued, 0 lines rejected\n", "")
    found = log.records("rollout-requests", lambda all_: sum(e["group_id"] == "gr-cli" for _, _, e in all_) == 3)
    assert {event["group_size"] for _, _, event in found if event["group_id"] == "gr-cli"} == {3}


def test_wrong_usage_and_missing_engines_have_their_exit_codes(environment, tmp_path: Path):
    assert run(["produce", str(tmp_path / "absent.jsonl")], environment).returncode == 2
    away = run(["produce", "-"], {**environment, "AGL_STREAM_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, stdin="1\n")
    assert away.returncode == 3 and "AGL_STREAM_BOOTSTRAP_SERVERS" in away.stderr
    away = run(["gateway", "--port", "0"], {**environment, "AGL_STREAM_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    assert away.returncode == 3 and "AGL_STREAM_BOOTSTRAP_SERVERS" in away.stderr
    away = run(["gateway", "--port", "0"], {**environment, "AGL_STREAM_REGISTRY_URL": "http://127.0.0.1:1"})
    assert away.returncode == 3 and "AGL_STREAM_REGISTRY_URL" in away.stderr
    bare = run(["gateway", "--host", "0.0.0.0", "--port", "0"], environment)
    assert bare.returncode == 2 and "AGL_STREAM_GATEWAY_TOKEN" in bare.stderr


@contextlib.contextmanager
def gateway(environment: dict[str, str], upstream: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway process and its URL."""
    process = subprocess.Popen(
        [*COMMAND, "gateway", "--port", "0", "--upstream", upstream],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("gateway ready on http://127.0.0.1:")
        yield process, ready.split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


async def test_a_stopped_gateway_ends_its_calls_first(environment, log: Log, rollout_id):
    async with InferenceServer() as server:
        with gateway(environment, server.url) as (process, url):
            server.go_on.clear()
            client = openai.AsyncOpenAI(
                base_url=f"{url}/rollout/{rollout_id}/attempt/at-1/v1", api_key="none", max_retries=0
            )
            stream = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "x"}], stream=True
            )
            chunks = aiter(stream)
            text = (await anext(chunks)).choices[0].delta.content or ""
            process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIConnectionError):
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline:
                    await openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).models.list()
            assert process.poll() is None
            server.go_on.set()
            async for chunk in chunks:
                text += chunk.choices[0].delta.content or ""
            assert text == "".join(PIECES)
            await client.close()
            assert await asyncio.to_thread(process.wait, 20) == 0
    span = (await asyncio.to_thread(log.events, "spans", rollout_id))[0]
    assert (span["status"], span["finish_reason"]) == ("ok", "stop")


def test_the_plain_producer_needs_no_line_of_ours(environment, log: Log):
    script = ROOT / "examples" / "02_plain_producer" / "produce_task.py"
    blocked = {**environment, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(script), '{"question": "ü"}'],
        env=blocked,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "confluent_kafka" in imported and "agl_stream" not in imported
    event = log.events("rollout-requests", done.stdout.strip())[0]
    assert json.loads(event["input"]) == {"question": "ü"}
    assert (event["mode"], event["event_id"], event["config"]["max_attempts"]) == ("train", "", 1)
