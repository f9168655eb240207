"""A server process is started, waited for and ended as asked, and never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agl_stream.infra.servers.process import ServerFailed, ServerProcess
from agl_stream.infra.servers.tools import ToolMissing
from tests.infra.servers.processes import alive, state, wait_until

SERVE = "echo serving; while :; do sleep 0.05; done"


def server(folder: Path, script: str = SERVE, **options: float) -> ServerProcess:
    return ServerProcess(
        "thing",
        ["/bin/sh", "-c", script],
        folder,
        ready=lambda process: process.printed_since_start("serving"),
        **options,
    )


def test_a_server_is_ready_when_it_says_so_and_gone_when_stopped(tmp_path: Path) -> None:
    process = server(tmp_path)
    assert process.pid is None and not process.running
    process.start()
    process.wait_ready()
    pid = process.pid
    assert pid is not None and alive(pid)
    assert process.rss_bytes() > 0
    assert process.ready_seconds is not None
    process.start()
    assert process.pid == pid, "started twice"
    process.stop()
    assert not alive(pid) and process.pid is None and process.rss_bytes() == 0
    assert process.exit_status == -signal.SIGTERM


def test_readiness_of_an_earlier_start_does_not_count(tmp_path: Path) -> None:
    process = server(tmp_path)
    process.start()
    process.wait_ready()
    process.kill()
    again = server(tmp_path, "echo sorry; exit 3", ready_timeout_seconds=5)
    again.start()
    with pytest.raises(ServerFailed, match=r"(?s)thing ended with 3 before it was ready.*sorry") as failure:
        again.wait_ready()
    assert "serving" not in str(failure.value)


def test_silence_is_a_failure_with_the_end_of_the_log(tmp_path: Path) -> None:
    process = server(tmp_path, "echo thinking; sleep 60", ready_timeout_seconds=0.5)
    process.start()
    try:
        with pytest.raises(ServerFailed, match=r"(?s)thing was not ready within 0.5 s.*thing\.log.*thinking"):
            process.wait_ready()
    finally:
        process.kill()


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = server(tmp_path, "trap '' TERM; " + SERVE, stop_timeout_seconds=0.3)
    process.start()
    process.wait_ready()
    process.stop()
    assert process.exit_status == -signal.SIGKILL


def test_pause_stops_and_resume_continues_and_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    process = server(tmp_path, "exec sleep 60")
    process.start()
    pid = process.pid
    assert pid is not None
    process.pause()
    wait_until(lambda: state(pid) == "T", "the pause")
    process.resume()
    wait_until(lambda: state(pid) == "S", "the resumption")
    process.pause()
    process.stop()
    assert process.exit_status == -signal.SIGTERM, "it had to be killed"


def test_a_server_started_from_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    process = server(tmp_path)
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    process.wait_ready()
    # The kernel sends the signal of a parent's death at once when a thread ends.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.kill()


PARENT = """
import sys
from pathlib import Path
from agl_stream.infra.servers.process import ServerProcess
process = ServerProcess("thing", ["/bin/sleep", "600"], Path(sys.argv[1]), ready=lambda process: True)
process.start()
process.wait_ready()
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_dies_with_its_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    wait_until(lambda: not alive(pid), "the end of the child of a killed process", 10)


def test_a_server_whose_parent_is_gone_before_it_starts_does_not_start(tmp_path: Path) -> None:
    process = server(tmp_path)
    process.start()
    process.wait_ready()
    process.kill()
    # As it would see it when its parent ended between the fork and the request to the kernel.
    argv = list(process.command())
    at = argv.index(str(os.getpid()))
    argv[at] = "1"
    done = subprocess.run(argv, capture_output=True, timeout=10)
    assert done.returncode == 1 and b"serving" not in done.stdout


def test_without_setpriv_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"setpriv is not on PATH.*apt-get install util-linux"):
        server(tmp_path).start()


def test_a_log_is_kept_within_bounds(tmp_path: Path) -> None:
    process = server(tmp_path, "for i in $(seq 2000); do echo line $i of many; done; " + SERVE)
    process.start()
    process.wait_ready()
    try:
        process.bound_log(max_bytes=10_000)
        assert process.log_path.stat().st_size < 1000
        old = process.log_path.with_name("thing.log.1")
        assert old.stat().st_size > 10_000 and "line 2000 of many" in old.read_text()
    finally:
        process.kill()
