"""A training run on Apache Kafka, looked at afterwards: every rollout, attempt and triplet of it is a row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_stream.infra.servers.engine import temporary_folder
from agl_stream.settings import ENV_PREFIX
from agl_stream.supervise import free_ports

pytestmark = [pytest.mark.engines, pytest.mark.train, pytest.mark.timeout(400)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below one that PostgreSQL's own user may enter."""
    parent, remove = temporary_folder("kept")
    yield parent / "kept"
    remove()


def test_rollouts_of_a_training_run_are_rows(folder: Path) -> None:
    kafka, connect, postgres, registry = free_ports(4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    environment |= {
        "AGL_STREAM_DIR": str(folder),
        "AGL_STREAM_BOOTSTRAP_SERVERS": f"127.0.0.1:{kafka}",
        "AGL_STREAM_REGISTRY_URL": f"http://127.0.0.1:{registry}",
        "AGL_STREAM_CONNECT_URL": f"http://127.0.0.1:{connect}",
        "AGL_STREAM_CONNECT_JDBC_URL": f"jdbc:postgresql://127.0.0.1:{postgres}/agl",
    }

    def agl(*arguments: str) -> str:
        done = subprocess.run(_command(*arguments), env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    story = agl("demo", "--steps", "2", "--engine", "kafka", "--keep", str(folder))
    requested = re.search(r"([\d,]+) requested = ", story)
    spans = re.search(r"([\d,]+) spans", story)
    assert requested and spans, story
    requested, spans = (int(found[1].replace(",", "")) for found in (requested, spans))
    assert requested >= 128
    ports = [f"--port={name}={port}" for name, port in (("kafka", kafka), ("connect", connect), ("postgres", postgres))]
    with subprocess.Popen(
        _command("registry", "--port", str(registry)), env=environment, stdout=subprocess.DEVNULL
    ) as running:
        try:
            agl("engines", "start", "kafka", "connect", "postgres", *ports)
            agl("connect", "apply", "--all")

            def ask(query: str) -> int:
                done = subprocess.run(
                    ["psql", "-h", "127.0.0.1", "-p", str(postgres), "-U", "postgres", "-At", "agl", "-c", query],
                    capture_output=True,
                    text=True,
                )
                return int(done.stdout.strip() or -1)

            trained = "join rollouts r using (rollout_id) where r.mode = 'train'"
            wanted = {
                "select count(*) from rollouts where mode = 'train'": requested,
                f"select count(distinct rollout_id) from attempts a {trained} and a.status = 'succeeded'": requested,
                f"select count(distinct rollout_id) from triplets t {trained}": requested,
            }
            deadline = time.monotonic() + 90
            while (found := {query: ask(query) for query in wanted}) != wanted:
                assert time.monotonic() < deadline, (found, wanted, agl("connect", "status"))
                time.sleep(0.5)
            lines = folder / "exports" / "spans.jsonl"
            while len(lines.read_text().splitlines()) < spans:
                assert time.monotonic() < deadline, f"{lines} lacks spans"
                time.sleep(0.5)
        finally:
            subprocess.run(_command("engines", "stop"), env=environment, capture_output=True, timeout=120)
            running.terminate()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agl_stream.cli.main", *arguments]
