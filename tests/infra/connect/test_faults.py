"""A killed worker, a database that is away, a registry that is away: nothing is lost, no row is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agl_stream.cli.doctor import check_registry
from agl_stream.errors import AglStreamError
from agl_stream.settings import Settings
from agl_stream.supervise import free_ports

from .conftest import NOW_US, Scene, rollout, wait_for

# Two workers start again and catch up; on a machine with other work that takes minutes.
pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.timeout(600)]

ROLLOUTS = 60


class Load:
    """Writes states of rollouts and attempt events without a pause until it is stopped."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.events = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.rounds += 1
            states = [rollout(n, self.rounds) for n in range(ROLLOUTS)]
            changes = [
                {
                    "rollout_id": f"ro-{n}",
                    "attempt_id": f"at-{n}",
                    "attempt_number": 1,
                    "status": "running",
                    "occurred_at_us": NOW_US + self.rounds,
                }
                for n in range(ROLLOUTS)
            ]
            for partition in (0, 1):
                self._scene.produce("rollouts", "RolloutStateChanged", *states[partition::2], partition=partition)
                self._scene.produce("attempts", "AttemptStatusChanged", *changes[partition::2], partition=partition)
            self.events += ROLLOUTS
            self._stop.wait(0.2)  # Some 300 events a second: more would only lengthen the queue to be written.


def test_a_killed_worker_loses_nothing_and_leaves_no_row_twice(scene: Scene) -> None:
    scene.apply("rollouts-postgres", "attempt-events-postgres")
    with Load(scene) as load:
        for _ in range(2):
            seen = int(scene.sql("select count(*) from attempt_events") or 0)
            wait_for(
                lambda seen=seen: int(scene.sql("select count(*) from attempt_events") or 0) > seen + 300, "rows", 180
            )
            scene.worker.kill()
            before = load.events
            wait_for(lambda before=before: load.events > before + 2 * ROLLOUTS, "a backlog")
            scene.worker.start()
    scene.wait_sql("select count(*) from attempt_events", str(load.events), 240)
    # A row for each place in the log, none twice, none left out.
    assert scene.sql(
        "select log_partition, count(*), count(distinct log_offset), min(log_offset), max(log_offset) + 1 "
        "from attempt_events group by 1 order by 1"
    ).splitlines() == [
        f"{partition}|{load.events // 2}|{load.events // 2}|0|{load.events // 2}" for partition in (0, 1)
    ]
    scene.wait_sql(
        "select count(*), count(distinct rollout_id), min(version), max(version) from rollouts",
        f"{ROLLOUTS}|{ROLLOUTS}|{load.rounds}|{load.rounds}",
        60,
    )


def test_a_database_that_is_away_is_waited_for(scene: Scene) -> None:
    scene.apply("rollouts-postgres", "attempt-events-postgres")
    with Load(scene) as load:
        wait_for(lambda: int(scene.sql("select count(*) from attempt_events") or 0) > 300, "rows", 180)
        log_start = scene.worker.nodes[0].log_path.stat().st_size
        scene.postgres.stop()
        try:
            wait_for(lambda: b"is away" in log_since(scene, log_start), "the sink's word that the database is away")
            before = load.events
            wait_for(lambda: load.events > before + 5 * ROLLOUTS, "a backlog")
            assert scene.agl("connect", "status").exit_code == 0
        finally:
            scene.postgres.start()
    scene.wait_sql(
        "select count(*), count(distinct (log_partition, log_offset)) from attempt_events",
        f"{load.events}|{load.events}",
    )
    scene.wait_sql("select count(*), min(version) from rollouts", f"{ROLLOUTS}|{load.rounds}")
    assert scene.agl("connect", "status").exit_code == 0


def test_a_sink_may_start_before_its_database(scene: Scene) -> None:
    scene.postgres.stop()
    try:
        scene.apply("rollouts-postgres")
        scene.produce("rollouts", "RolloutStateChanged", rollout(1))
        wait_for(lambda: b"starting all the same" in log_since(scene, 0), "the start")
    finally:
        scene.postgres.start()
    scene.wait_sql("select count(*) from rollouts", "1")


def test_a_wrong_password_or_database_fails_at_once(scene: Scene) -> None:
    scene.env["AGL_STREAM_CONNECT_JDBC_URL"] += "_wrong?password=secret"
    scene.apply("rollouts-postgres")
    result = wait_for(lambda: (found := scene.agl("connect", "status")).exit_code == 1 and found, "the failure")
    assert f'database "{scene.namespace}_wrong" does not exist' in result.output
    assert "secret" not in result.output


def log_since(scene: Scene, position: int) -> bytes:
    with scene.worker.nodes[0].log_path.open("rb") as log:
        log.seek(position)
        return log.read()


class RegistryProcess:
    """`agl-stream registry` on a port and folder of its own."""

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "agl_stream.cli.main", "registry", "--port", str(self._port)]
        self._process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        wait_for(self._answers, "the registry")

    def _answers(self) -> bool:
        try:
            check_registry(Settings(registry_url=self.url))
        except AglStreamError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    process = RegistryProcess(tmp_path / "registry")
    process.start()
    yield process
    process.kill()


def test_a_registry_that_is_away_is_waited_for(make_scene: Callable[[str], Scene], registry: RegistryProcess) -> None:
    scene = make_scene(registry.url)
    scene.produce("rollouts", "RolloutStateChanged", *[rollout(n) for n in range(20)])
    registry.kill()
    log_start = scene.worker.nodes[0].log_path.stat().st_size
    scene.apply("rollouts-postgres")
    wait_for(lambda: b"does not answer" in log_since(scene, log_start), "the converter's word")
    assert scene.sql("select count(*) from rollouts") == ""
    registry.start()
    scene.wait_sql("select count(*) from rollouts", "20")
    assert scene.count("dead-letters.rollouts-postgres") == 0
