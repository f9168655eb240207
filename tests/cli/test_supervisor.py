"""The supervisor with real processes: readiness, restart, give-up, order of stop, orphans, logs, usage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agl_stream.supervise import ProcessFailed, ProcessSpec, RestartPolicy, Supervisor
from agl_stream.supervise.bounded_log import BoundedLog

READY_THEN_WAIT = "import time; print('thing ready', flush=True); time.sleep(600)"
STOPS_ON_TERM = (
    "import signal, sys, time, pathlib\n"
    "def stop(*_):\n"
    "    with open(sys.argv[1], 'a') as f: f.write(sys.argv[2] + '\\n')\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)


def python(code: str, *arguments: str, name: str = "thing", **options: object) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-c", code, *arguments], **options)  # type: ignore[arg-type]


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, notes: list[str]) -> Iterator[Supervisor]:
    policy = RestartPolicy(max_deaths=3, first_delay_seconds=0.02)
    with Supervisor(tmp_path / "logs", policy=policy, notify=notes.append) as made:
        yield made


def test_start_waits_for_the_ready_line(supervisor: Supervisor) -> None:
    supervisor.start(
        python(
            "import time; time.sleep(0.3); print('already late', flush=True)\n"
            "print('is ready: now', flush=True); time.sleep(600)"
        )
    )
    assert supervisor.ready_line("thing") == "is ready: now"
    assert alive(supervisor.pids()["thing"])


def test_a_killed_process_comes_back_with_its_log_and_usage_kept(
    supervisor: Supervisor, notes: list[str], tmp_path: Path
) -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass\n" + READY_THEN_WAIT
    supervisor.start(python(busy))
    first = supervisor.pids()["thing"]
    os.kill(first, signal.SIGKILL)
    until(lambda: any("ready again" in note for note in notes))
    assert supervisor.pids()["thing"] != first
    assert supervisor.restarts() == {"thing": 1}
    assert supervisor.usage()["thing"].cpu_seconds > 0.35, "CPU seconds of both incarnations"
    assert (tmp_path / "logs" / "thing.log").read_text().count("thing ready") == 2
    assert "SIGKILL" in notes[0]


def test_usage_counts_what_a_process_started(supervisor: Supervisor, tmp_path: Path) -> None:
    """As the servers that stand behind a process which only keeps them."""
    hungry = f"b = bytearray(80_000_000); open({str(tmp_path / 'full')!r}, 'w').close(); import time; time.sleep(600)"
    keeper = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {hungry!r}]); print('ready', flush=True)\n"
        "import time; time.sleep(600)"
    )
    supervisor.start(python(keeper))
    until((tmp_path / "full").exists)
    assert supervisor.usage()["thing"].max_rss_bytes > 80_000_000


def test_a_process_that_keeps_dying_is_given_up_with_its_last_lines(supervisor: Supervisor) -> None:
    supervisor.start(
        python("import sys; print('ready', flush=True); print('no such disk', file=sys.stderr); sys.exit(4)")
    )
    with pytest.raises(ProcessFailed, match=r"(?s)exit status 4, 3 times.*no such disk"):
        until(lambda: bool(supervisor.check()), 10)


def test_a_process_that_waits_for_something_is_never_given_up(tmp_path: Path) -> None:
    """It says by its exit status that what it needs is away; when that is back, so is the process."""
    there = tmp_path / "there"
    there.touch()
    code = (
        "import pathlib, sys, time\n"
        "if not pathlib.Path(sys.argv[1]).exists(): sys.exit(3)\n"
        "print('ready', flush=True)\n"
        "while pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    policy = RestartPolicy(max_deaths=3, first_delay_seconds=0.01, max_delay_seconds=0.02)
    with Supervisor(tmp_path / "logs", policy=policy) as supervisor:
        supervisor.start(python(code, str(there), waits_with=3))
        there.unlink()
        until(lambda: supervisor.restarts()["thing"] > 2 * policy.max_deaths, 60)
        supervisor.check()
        there.touch()
        until(lambda: supervisor.ready_line("thing") is not None, 30)
        supervisor.check()


def test_a_process_that_ends_before_it_is_ready_fails_the_start_at_once(supervisor: Supervisor) -> None:
    started = time.monotonic()
    with pytest.raises(ProcessFailed, match=r"(?s)exit status 1 before it was ready.*port 9092 is in use"):
        supervisor.start(python("import sys; sys.exit('port 9092 is in use')"))
    assert time.monotonic() - started < 5
    assert supervisor.restarts() == {"thing": 1}


def test_a_process_that_never_says_ready_is_killed(supervisor: Supervisor) -> None:
    with pytest.raises(ProcessFailed, match=r"(?s)SIGKILL before it was ready.*not ready within 0.3 s"):
        supervisor.start(python("import time; time.sleep(600)", ready_timeout_seconds=0.3))


def test_a_command_that_does_not_exist(supervisor: Supervisor) -> None:
    with pytest.raises(ProcessFailed, match="thing cannot be started"):
        supervisor.start(ProcessSpec("thing", ["/no/such/program"]))


def test_a_process_that_ends_with_zero_completes_and_is_not_restarted(supervisor: Supervisor) -> None:
    supervisor.start(python("print('ready', flush=True)", ends=True))
    assert supervisor.wait_completed("thing", 10)
    assert supervisor.restarts() == {"thing": 0}
    assert supervisor.pids() == {}


def test_wait_completed_tells_when_time_is_up(supervisor: Supervisor) -> None:
    supervisor.start(python(READY_THEN_WAIT, ends=True))
    assert not supervisor.wait_completed("thing", 0.05)


def test_stop_goes_in_reverse_order(tmp_path: Path) -> None:
    order = tmp_path / "order"
    supervisor = Supervisor(tmp_path / "logs")
    supervisor.start(python(STOPS_ON_TERM, str(order), "first", name="first"))
    supervisor.start(python(STOPS_ON_TERM, str(order), "second", name="second"))
    supervisor.stop()
    assert order.read_text().split() == ["second", "first"]


def test_stop_kills_what_ignores_the_signal_and_what_it_left_running(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n" + READY_THEN_WAIT
    )
    supervisor = Supervisor(tmp_path / "logs")
    supervisor.start(python(stubborn, str(grandchild), stop_timeout_seconds=0.2))
    pids = [supervisor.pids()["thing"], int(grandchild.read_text())]
    supervisor.stop()
    until(lambda: not any(alive(pid) for pid in pids))


def test_start_returns_when_cancelled(supervisor: Supervisor) -> None:
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    supervisor.start(python("import time; time.sleep(600)"), cancelled=cancelled)
    assert supervisor.ready_line("thing") is None


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    """kill -9 of the supervisor leaves nothing behind: each child asked the kernel for that."""
    child = (
        "from agl_stream.supervise.orphan import die_with_parent\n"
        "die_with_parent()\n"
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))\n" + READY_THEN_WAIT
    )
    parent = (
        "import sys, time, pathlib\n"
        "from agl_stream.supervise import ProcessSpec, Supervisor\n"
        "supervisor = Supervisor(pathlib.Path(sys.argv[1]))\n"
        "supervisor.start(ProcessSpec('c', [sys.executable, '-c', sys.argv[2], sys.argv[3]]))\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    pid_file = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path), child, str(pid_file)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    pid = int(pid_file.read_text())
    assert alive(pid)
    process.kill()
    process.wait()
    until(lambda: not alive(pid))


def test_a_log_keeps_its_bound(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "a.log", max_bytes=1000, tail_lines=3)
    for number in range(1000):
        log.write(b"line %d\n" % number)
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1"}
    assert all(size <= 1000 for size in sizes.values())
    assert log.tail() == ["line 997", "line 998", "line 999"]
    assert (tmp_path / "a.log").read_text().endswith("line 999\n")
