"""`agl-stream up` as a process: what it prints, what it refuses, how it ends, what it survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_stream.supervise import free_ports, pss_bytes
from tests.cli.running import Up, ports


def threads_children(pid: int) -> list[int]:
    """Children of any thread of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(p) for p in (task / "children").read_text().split()]
    return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up") / "data", *ports())
    try:
        running.endpoints()
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(60)


def test_endpoints_are_printed_and_found_by_other_verbs(up: Up) -> None:
    assert json.loads((up.folder / "endpoints.json").read_text())["data_dir"] == str(up.folder)
    found = up.agl("doctor", "--output", "json")
    assert found["ok"], found["checks"]
    assert {s["name"] for s in found["settings"] if s["source"] == "folder"} >= {"bootstrap_servers", "registry_url"}
    status = up.agl("status", "--output", "json")
    assert status["source"] == "state store"
    assert status["rollouts"] == {}
    assert {change["action"] for change in up.agl("topics", "plan", "--output", "json")["changes"]} == {"keep"}


def test_memory_at_rest_is_below_400_mb(up: Up) -> None:
    pids = [up.process.pid, *threads_children(up.process.pid)]
    assert len(pids) == 7
    total = sum(pss_bytes(pid) for pid in pids)
    assert 50e6 < total < 400e6, f"{total / 1e6:.0f} MB"


def test_a_second_up_in_the_folder_is_refused(up: Up) -> None:
    done = subprocess.run(up.command("up", *ports()), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"in use by a running system (process {up.process.pid})" in done.stderr


def test_a_given_port_in_use_is_refused(up: Up, tmp_path: Path) -> None:
    taken = up.agl("status", "--output", "json")["bootstrap_servers"].rpartition(":")[2]
    other = Up(tmp_path / "other", "--broker-port", taken)
    code, err = other.ended()
    assert code == 1
    assert f"port {taken} (--broker-port) is in use" in err
    assert err.count("\n") == 1


def test_a_default_port_in_use_gives_way_and_says_so(tmp_path: Path) -> None:
    from agl_stream.cli.up import claim_ports

    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            busy.bind(("127.0.0.1", 9092))
            busy.listen()
        except OSError:
            pass  # Somebody has it already, which serves as well.
        chosen, notes = claim_ports(None, *free_ports(2))
    assert chosen.broker != 9092
    assert notes == [f"port 9092 is in use, --broker-port is {chosen.broker} instead"]


def test_a_killed_part_comes_back_on_its_port_with_its_data(up: Up) -> None:
    log = up.folder / "logs" / "broker.log"
    starts = log.read_text().count("broker ready")
    broker = next(p for p in threads_children(up.process.pid) if b"broker" in Path(f"/proc/{p}/cmdline").read_bytes())
    os.kill(broker, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while log.read_text().count("broker ready") == starts:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {change["action"] for change in up.agl("topics", "plan", "--output", "json")["changes"]} == {"keep"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_and_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    started = time.monotonic()
    up = Up(tmp_path / "data", *ports())
    endpoints = up.endpoints()
    assert list(endpoints) == ["bootstrap_servers", "registry_url", "gateway_url", "data_dir"]
    assert time.monotonic() - started < 15, "5 s on an idle machine"
    children = threads_children(up.process.pid)
    up.process.send_signal(number)
    code, err = up.ended()
    assert code == 0, err
    assert not (tmp_path / "data" / "endpoints.json").exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert "Traceback" not in "".join(p.read_text() for p in (tmp_path / "data" / "logs").iterdir())


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", *ports())
    deadline = time.monotonic() + 30
    while not (tmp_path / "data" / "logs" / "broker.log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    up.process.send_signal(signal.SIGINT)
    code, err = up.ended()
    assert (code, "Traceback" in err) == (0, False)


def test_nothing_survives_kill_9(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", *ports())
    up.endpoints()
    children = threads_children(up.process.pid)
    assert len(children) == 6
    up.process.kill()
    up.process.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = Up(tmp_path / "file" / "data").ended()
    assert code == 1
    assert "cannot be used" in err and "AGL_STREAM_DIR" in err and err.count("\n") == 1
