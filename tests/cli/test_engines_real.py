"""`agl-stream engines`, `up` and `demo` with real engines, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_stream.infra.servers.engine import temporary_folder
from agl_stream.infra.servers.postgres import postgres_folder
from agl_stream.supervise import free_ports
from tests.cli.running import Up, ports
from tests.infra.servers.processes import alive, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]


class Engines:
    """The verb on one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(self.folder), "engines", *arguments]

    def run(self, *arguments: str, code: int = 0) -> Any:
        done = subprocess.run(self.command(*arguments, "--output", "json"), capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr
        return {**json.loads(done.stdout), "stderr": done.stderr}

    def status(self, engine: str, code: int = 0) -> dict[str, Any]:
        (found,) = self.run("status", engine, code=code)["engines"]
        return found


def free(*names: str) -> list[str]:
    return [f"--port={name}={port}" for name, port in zip(names, free_ports(len(names)), strict=True)]


@pytest.fixture
def engines() -> Iterator[Engines]:
    folder, remove = temporary_folder("verb")
    verb = Engines(folder)
    yield verb
    subprocess.run(verb.command("stop"), capture_output=True, timeout=200)
    remove()


def sql(address: str, statement: str) -> str:
    psql = postgres_folder() / "psql"
    done = subprocess.run([psql, "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", address, "-c", statement], capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_engines_run_in_the_background_until_they_are_stopped_and_keep_data(engines: Engines) -> None:
    given = free("kafka", "postgres", "connect")
    started = {e["engine"]: e for e in engines.run("start", "postgres", "connect", "kafka", *given)["engines"]}
    assert set(started) == {"kafka", "postgres", "connect"}
    assert started["kafka"]["address"].endswith(given[0].rpartition("=")[2])
    sql(started["postgres"]["address"], "create table t (a int); insert into t values (7)")

    twice = engines.run("start", "kafka")
    assert f"kafka runs already at {started['kafka']['address']}" in twice["stderr"]
    assert twice["engines"][0]["keeper"] == started["kafka"]["keeper"]

    status = {e["engine"]: e for e in engines.run("status")["engines"]}
    assert all(e["ready"] and e["running"] and e["background"] for e in status.values())
    assert status["kafka"]["version"] == "4.3.1" and status["kafka"]["rss_bytes"] > 100e6
    assert status["connect"]["settings"] == {"connect_url": started["connect"]["address"]}
    text = subprocess.run(engines.command("status"), capture_output=True, text=True, timeout=60).stdout
    assert "4.3.1" in text and "yes" in text and "MiB" in text

    pids = [pid for e in status.values() for pid in (e["pid"], *e["node_pids"].values())]
    assert len(pids) == 6 and all(map(alive, pids))
    assert engines.run("stop")["stopped"] == ["connect", "postgres", "kafka"]
    assert not any(map(alive, pids)), "stop came back before they were gone"
    assert engines.run("status")["engines"] == []

    (again,) = engines.run("start", "postgres")["engines"]
    assert again["address"] == started["postgres"]["address"]
    assert sql(again["address"], "select a from t") == "7"


def test_a_killed_server_comes_back_and_a_killed_keeper_takes_its_server_along(engines: Engines) -> None:
    engines.run("start", "kafka", *free("kafka"))
    first = engines.status("kafka")
    os.kill(first["node_pids"]["kafka-1"], signal.SIGKILL)

    def back() -> bool:
        done = subprocess.run(
            engines.command("status", "kafka", "--output", "json"), capture_output=True, text=True, timeout=60
        )
        found = json.loads(done.stdout)["engines"][0]
        return found["ready"] and found["node_pids"] != first["node_pids"]

    wait_until(back, "the restart of a killed server", 90)
    second = engines.status("kafka")
    assert second["pid"] == first["pid"] and second["address"] == first["address"]

    os.kill(second["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(second["node_pids"]["kafka-1"]), "the end of a server whose keeper was killed", 10)
    assert engines.status("kafka", code=1) == {"engine": "kafka", "running": False, "ready": False}
    engines.run("start", "kafka")
    assert engines.status("kafka")["address"] == first["address"]


SUPERVISOR = """
import os, subprocess, sys, time
environment = {**os.environ, "AGL_STREAM_PARENT_PID": str(os.getpid())}
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, env=environment)
print(child.stdout.readline(), end="", flush=True)
time.sleep(600)
"""


def test_in_the_foreground_they_end_with_whoever_runs_them(engines: Engines) -> None:
    command = engines.command("start", "postgres", "--foreground", "--output", "json", *free("postgres"))
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, *command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (started,) = json.loads(parent.stdout.readline())["engines"]
        pids = [started["keeper"]["pid"], *(node["pid"] for node in started["nodes"].values())]
        assert all(map(alive, pids)) and started["background"] is False
        refused = subprocess.run(engines.command("stop", "postgres"), capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and f"foreground of process {pids[0]}" in refused.stderr
        parent.kill()
    wait_until(lambda: not any(map(alive, pids)), "the end of an engine whose supervisor was killed", 20)


def test_in_the_foreground_a_signal_stops_them_in_order(engines: Engines) -> None:
    command = engines.command("start", "postgres", "--foreground", *free("postgres"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline().startswith("ready: postgres ")
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
    log = (engines.folder / "engines" / "postgres" / "postgres.log").read_text()
    assert "database system is shut down" in log


def test_a_port_that_is_taken_is_told_by_the_start(engines: Engines) -> None:
    engines.run("start", "postgres", *free("postgres"))
    taken = engines.status("postgres")["address"].rpartition(":")[2].partition("/")[0]
    other = Engines(engines.folder / "other")
    done = subprocess.run(
        other.command("start", "kafka", f"--port=kafka={taken}"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and f"port {taken}" in done.stderr and "Traceback" not in done.stderr


def test_connect_without_a_broker_is_told_at_once(engines: Engines) -> None:
    command = engines.command("start", "connect", "--bootstrap-servers", "127.0.0.1:1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "none answers at 127.0.0.1:1" in done.stderr and "engines start kafka connect" in done.stderr


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    folder, remove = temporary_folder("up")
    real = ("--engine", "kafka", "--store", "cassandra", "--registry", "apicurio")
    running = Up(folder / "data", *ports(), "--store-port", str(free_ports(1)[0]), *real)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            running.process.wait(120)
        remove()


def test_up_on_real_engines_serves_the_other_verbs(up: Up) -> None:
    endpoints = up.endpoints()
    published = json.loads((up.folder / "endpoints.json").read_text())
    assert published["store_url"].startswith("cassandra://127.0.0.1:")
    assert endpoints["registry_url"].endswith("/apis/ccompat/v7")
    found = up.agl("doctor", "--output", "json")
    assert found["ok"], found["checks"]
    assert {change["action"] for change in up.agl("topics", "plan", "--output", "json")["changes"]} == {"keep"}
    assert {change["action"] for change in up.agl("store", "plan", "--output", "json")["changes"]} == {"keep"}
    assert up.agl("status", "--output", "json")["source"] == "state store"
    engines = {e["engine"]: e for e in up.agl("engines", "status", "--output", "json")["engines"]}
    assert set(engines) == {"kafka", "cassandra", "registry"} and all(e["ready"] for e in engines.values())
    assert not any(e["background"] for e in engines.values())
    up.process.send_signal(signal.SIGINT)
    code, err = up.ended(120)
    assert code == 0, err
    assert not any(alive(pid) for e in engines.values() for pid in (e["pid"], *e["node_pids"].values()))
    assert "Traceback" not in "".join(path.read_text() for path in (up.folder / "logs").iterdir())


def test_the_demo_passes_unchanged_on_kafka_and_cassandra(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agl_stream.cli.main", "demo", "--output", "json"]
    real = (
        "--engine",
        "kafka",
        "--store",
        "cassandra",
        "--steps",
        "4",
        "--prompts",
        "4",
        "--keep",
        str(tmp_path / "d"),
    )
    done = subprocess.run([*command, *real], capture_output=True, text=True, timeout=390)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    rollouts = result["rollouts"]
    assert result["steps"] == 4 and rollouts["in_flight"] == 0 and not result["restarts"], done.stderr
    assert rollouts["requested"] == rollouts["trained"] + rollouts["dropped"] == 4 * 4 * 8
    assert result["max_rss_mib"]["kafka"] > 100 and result["max_rss_mib"]["cassandra"] > 150
