"""`agl-stream engines`: what it refuses, and that it ends nobody else's processes. No engine is started here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agl_stream.cli.engines import NAMES
from agl_stream.infra.servers.choice import ENGINES, USUAL_PORTS
from agl_stream.infra.servers.fetch import NEEDS
from agl_stream.infra.servers.identity import ProcessIdentity
from agl_stream.infra.servers.records import EngineFolder, Record


def engines(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which only setpriv is found."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "setpriv").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "setpriv").chmod(0o755)
    return {"PATH": str(tmp_path / "bin"), "JAVA_HOME": "", "AGL_STREAM_ENGINES_DIR": str(tmp_path / "engines")}


def test_the_verb_knows_the_engines_there_are() -> None:
    assert set(NAMES) == set(ENGINES) == set(NEEDS) == set(USUAL_PORTS)
    assert tuple(NAMES) == ENGINES, "the order in which they are started"


@pytest.mark.parametrize(
    "arguments",
    [
        ("engines", "fetch", "kafka"),
        ("engines", "start", "cassandra"),
        ("up", "--engine", "kafka"),
        ("up", "--registry", "apicurio"),
        ("demo", "--store", "cassandra", "--steps", "1"),
    ],
)
def test_without_java_there_is_one_sentence_with_the_remedy(
    tmp_path: Path, without_java: dict[str, str], arguments: tuple[str, ...]
) -> None:
    done = engines(tmp_path / "data", *arguments, **without_java)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("agl-stream:")]
    assert len(told) == 1, done.stderr
    assert "java is not on PATH" in told[0] and "apt-get install openjdk-17-jre-headless" in told[0]
    assert "Traceback" not in done.stderr


def test_without_maven_there_is_one_sentence_with_the_remedy(tmp_path: Path, without_java: dict[str, str]) -> None:
    java = Path(without_java["PATH"]) / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021' >&2\n")
    java.chmod(0o755)
    done = engines(tmp_path / "data", "engines", "start", "kafka", **without_java)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("agl-stream: mvn is not on PATH")
    assert "apt-get install maven" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start",), "name the engines to start: kafka, cassandra"),
        (("start", "oracle"), "'oracle' is not one of"),
        (("start", "kafka", "--port", "9092"), "--port 9092: give ENGINE=PORT"),
        (("start", "kafka", "--port", "kafka=0"), "--port kafka=0: give ENGINE=PORT"),
        (("start", "kafka", "--kafka-nodes", "2"), "'2' is not one of"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = engines(tmp_path, "engines", *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_status_of_a_folder_without_engines(tmp_path: Path) -> None:
    done = engines(tmp_path, "engines", "status")
    assert done.returncode == 0 and "agl-stream engines start kafka" in done.stdout
    done = engines(tmp_path, "engines", "status", "kafka", "--output", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["engines"] == [{"engine": "kafka", "running": False, "ready": False}]


def record(keeper: ProcessIdentity, *, background: bool) -> Record:
    return Record("kafka", "1", "127.0.0.1:1", {}, keeper, {"kafka-1": keeper}, background)


def test_stop_never_ends_a_process_that_has_the_id_of_a_former_engine(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path, "kafka")
    folder.path.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as foreign:
        try:
            now = ProcessIdentity.of(foreign.pid)
            assert now is not None
            former = ProcessIdentity(now.pid, now.started - 1, now.boot)
            folder.write(record(former, background=True))
            done = engines(tmp_path, "engines", "stop", "kafka", "--output", "json")
            assert done.returncode == 0 and json.loads(done.stdout) == {"stopped": []}
            assert "does not run" in done.stderr
            assert foreign.poll() is None
            # The same with the right moment is ended: the test would see it.
            folder.write(record(now, background=True))
            assert engines(tmp_path, "engines", "stop", "kafka").stdout == "kafka stopped\n"
            assert foreign.wait(10) == -15
        finally:
            foreign.kill()


def test_stop_leaves_an_engine_in_the_foreground_to_whoever_runs_it(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path, "kafka")
    folder.path.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as other:
        now = ProcessIdentity.of(other.pid)
        assert now is not None
        folder.write(record(now, background=False))
        done = engines(tmp_path, "engines", "stop")
        assert done.returncode == 2 and f"runs in the foreground of process {other.pid}: end that one" in done.stderr
        assert other.poll() is None
        other.kill()
