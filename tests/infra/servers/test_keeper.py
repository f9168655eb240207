"""Whoever keeps engines running: one at a time for a folder, truthful records, restarts, and only its own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agl_stream.errors import FolderNotWritable
from agl_stream.infra.servers.engine import Engine
from agl_stream.infra.servers.identity import ProcessIdentity
from agl_stream.infra.servers.keeper import Keeper
from agl_stream.infra.servers.process import Cancelled, ServerFailed, ServerProcess
from agl_stream.infra.servers.records import EngineFolder, Record
from tests.infra.servers.processes import alive, wait_until


class Sleepers(Engine):
    """An engine of shell processes."""

    def __init__(self, folder: Path, script: str = "echo serving; exec sleep 600", count: int = 1) -> None:
        super().__init__(folder)
        self.version = "1.0"
        self.nodes = [
            ServerProcess(
                f"sleeper-{number}",
                ["/bin/sh", "-c", script],
                self.folder,
                ready=lambda process: process.printed_since_start("serving"),
            )
            for number in range(count)
        ]

    @property
    def address(self) -> str:
        return "127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path) -> EngineFolder:
    return EngineFolder(tmp_path, "kafka")


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's business here."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_more_than_its_id(foreign: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(foreign.pid)
    assert identity is not None and identity.alive() and ProcessIdentity.read(identity.as_dict()) == identity
    assert not identity.wait_gone(0.05)
    for other in (replace(identity, started=identity.started - 1), replace(identity, boot="another boot")):
        assert not other.alive()
        assert not other.signal(signal.SIGKILL)
        assert other.wait_gone(0)
    assert foreign.poll() is None, "a process that had the id of another was killed"
    assert identity.signal(signal.SIGTERM)
    assert identity.wait_gone(10)
    foreign.wait()
    assert not identity.alive() and not identity.signal(signal.SIGTERM)
    assert ProcessIdentity.of(foreign.pid) is None


def test_a_process_is_waited_for_with_any_number_of_open_files(
    foreign: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """select() knows descriptors below 1024 only."""
    identity = ProcessIdentity.of(foreign.pid)
    assert identity is not None
    with ExitStack() as files:
        while files.enter_context((tmp_path / "file").open("w")).fileno() < 1100:
            pass
        assert not identity.wait_gone(0.05)
        foreign.kill()
        assert identity.wait_gone(10)


def test_a_zombie_is_no_living_process() -> None:
    child = subprocess.Popen(["true"])
    wait_until(lambda: not alive(child.pid), "the end of the child", 10)
    assert ProcessIdentity.of(child.pid) is None
    child.wait()


def test_a_started_engine_is_on_record_until_it_is_stopped(folder: EngineFolder) -> None:
    with Keeper(background=True, notify=print) as keeper:
        record = keeper.start(folder, lambda others: Sleepers(folder.path, count=2), threading.Event())
        assert folder.running() == record
        assert record.keeper.pid == os.getpid() and record.background and record.address == "127.0.0.1:1"
        assert list(record.nodes) == ["sleeper-0", "sleeper-1"]
        assert all(node.alive() for node in record.nodes.values()) and record.rss_bytes() > 0
        with pytest.raises(FolderNotWritable, match=rf"kafka runs already.*process {os.getpid()}.*engines stop kafka"):
            Keeper(background=True, notify=print).start(folder, lambda _: Sleepers(folder.path), threading.Event())
        assert folder.running() == record
    assert folder.running() is None
    assert not any(node.alive() for node in record.nodes.values())


def test_the_records_of_earlier_engines_are_given_to_later_ones(tmp_path: Path) -> None:
    seen: list[str] = []

    def make(others: dict[str, Record]) -> Engine:
        seen.extend(f"{name} {record.address}" for name, record in others.items())
        return Sleepers(tmp_path / "engines" / "connect")

    with Keeper(background=False, notify=print) as keeper:
        kafka = EngineFolder(tmp_path, "kafka")
        keeper.start(kafka, lambda _: Sleepers(kafka.path), threading.Event())
        keeper.start(EngineFolder(tmp_path, "connect"), make, threading.Event())  # type: ignore[arg-type]
    assert seen == ["kafka 127.0.0.1:1"]


def test_a_killed_node_is_started_again_and_put_on_record(folder: EngineFolder) -> None:
    notes: list[str] = []
    stop = threading.Event()
    with Keeper(background=True, notify=notes.append) as keeper:
        keeper.start(folder, lambda _: Sleepers(folder.path), threading.Event())
        watching = threading.Thread(target=keeper.watch, args=(stop,))
        watching.start()
        try:
            first = folder.running()
            assert first is not None
            os.kill(first.nodes["sleeper-0"].pid, signal.SIGKILL)

            def renewed() -> bool:
                record = folder.running()
                return record is not None and record.nodes != first.nodes and record.nodes["sleeper-0"].alive()

            wait_until(renewed, "the restart on record", 20)
        finally:
            stop.set()
            watching.join()
    assert "sleeper-0 ended with -9; starting it again" in notes[0] and "ready again" in notes[1]


def test_a_node_that_keeps_dying_is_given_up(folder: EngineFolder) -> None:
    notes: list[str] = []
    with Keeper(background=True, notify=notes.append) as keeper:
        # Ready at first, and never again: what is in the folder decides.
        script = "if [ -e died ]; then echo no disk; exit 4; fi; touch died; echo serving; sleep 0.2; exit 4"
        keeper.start(folder, lambda _: Sleepers(folder.path, script), threading.Event())
        with pytest.raises(ServerFailed, match=r"sleeper-0 ended 5 times within a minute: given up; see .*\.log"):
            keeper.watch(threading.Event())
    assert any("no disk" in note for note in notes)
    assert folder.running() is None


def test_a_start_can_be_given_up_and_leaves_nothing(folder: EngineFolder) -> None:
    cancelled = threading.Event()
    made: list[Sleepers] = []

    def make(_: object) -> Engine:
        made.append(Sleepers(folder.path, "exec sleep 600"))
        threading.Timer(0.3, cancelled.set).start()
        return made[0]

    started = time.monotonic()
    with Keeper(background=True, notify=print) as keeper, pytest.raises(Cancelled):
        keeper.start(folder, make, cancelled)
    assert time.monotonic() - started < 10
    assert not made[0].nodes[0].running and folder.running() is None


def test_a_record_whose_keeper_is_gone_is_no_running_engine_and_its_nodes_are_ended(
    folder: EngineFolder, foreign: subprocess.Popen[bytes]
) -> None:
    with Keeper(background=True, notify=print) as keeper:
        record = keeper.start(folder, lambda _: Sleepers(folder.path), threading.Event())
    left = subprocess.Popen(["sleep", "600"])
    identity, other = ProcessIdentity.of(left.pid), ProcessIdentity.of(foreign.pid)
    assert identity is not None and other is not None
    gone = replace(record.keeper, started=record.keeper.started - 1)
    nodes = {"left": identity, "reused": replace(other, started=other.started - 1)}
    folder.write(replace(record, keeper=gone, nodes=nodes))
    assert folder.running() is None
    with Keeper(background=True, notify=print) as keeper:
        keeper.start(folder, lambda _: Sleepers(folder.path), threading.Event())
        assert left.wait(10) == -signal.SIGKILL, "what an earlier keeper left still runs beside the new one"
        assert foreign.poll() is None, "a foreign process that had the id of a node was killed"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"engine": "kafka"}', '{"keeper": {"pid": "x"}}'])
def test_a_record_that_is_none_is_ignored(folder: EngineFolder, content: str) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "running.json").write_text(content)
    assert folder.running() is None
    with folder.held():
        pass
