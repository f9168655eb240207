"""The frame of the command line: quick, lazy, helpful, and exact about its exit codes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from agl_stream.cli.main import ONE_LINE_HELP, cli, run

HEAVY = ("torch", "transformers", "verl", "faust", "confluent_kafka", "aiokafka", "aiohttp", "pydantic", "rich")
NOBODY = {"AGL_STREAM_BOOTSTRAP_SERVERS": "127.0.0.1:1", "AGL_STREAM_CONNECT_TIMEOUT_SECONDS": "0.3"}


def agl(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agl_stream.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def test_help_lists_every_verb_and_imports_none() -> None:
    probe = (
        "import sys\n"
        "from agl_stream.cli.main import VERBS, run\n"
        "assert run(['--help']) == 0\n"
        "verbs = {verb for section in VERBS.values() for verb in section}\n"
        "print('imported:', sorted(v for v in verbs if 'agl_stream.cli.' + v in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert "imported: []" in done.stdout
    for verb, line in ONE_LINE_HELP.items():
        assert verb in done.stdout and line[:40] in done.stdout


@pytest.mark.parametrize("verb", ONE_LINE_HELP)
def test_every_verb_loads_and_loads_light(verb: str) -> None:
    probe = (
        "import sys\n"
        "from agl_stream.cli.main import run\n"
        f"code = run([{verb!r}, '--help'])\n"
        f"heavy = sorted(m for m in {HEAVY!r} if m in sys.modules)\n"
        "print(code, heavy, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "0 []"
    assert "--bootstrap-servers" in done.stdout


@pytest.mark.parametrize("arguments", [("version",), ("status", "--help"), ("--help",)])
def test_start_up_is_quick(arguments: tuple[str, ...]) -> None:
    """0.4 s on an idle machine; CPU time, since a busy one stretches the wall clock. The best of three."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert agl(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.4


def test_an_unknown_verb_suggests_the_nearest() -> None:
    done = agl("statsu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'status'?" in done.stderr
    assert "--help` lists the verbs" in agl("xyzzy").stderr


def test_wrong_usage_is_2_and_an_unreachable_engine_3() -> None:
    assert agl("tail").returncode == 2
    assert agl("tail", "no-such-topic").returncode == 2
    done = agl("status", **NOBODY)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "127.0.0.1:1" in done.stderr and "AGL_STREAM_BOOTSTRAP_SERVERS" in done.stderr


def test_a_setting_that_does_not_parse_is_wrong_usage() -> None:
    done = agl("status", AGL_STREAM_PARTITIONS="many")
    assert done.returncode == 2
    assert done.stderr.startswith("agl-stream: AGL_STREAM_PARTITIONS='many' is not a int")


@pytest.mark.parametrize("place", ["before", "after"])
def test_shared_options_count_before_and_after_the_verb(place: str) -> None:
    shared = ["--bootstrap-servers", "127.0.0.1:2", "--namespace", "other"]
    arguments = [*shared, "doctor"] if place == "before" else ["doctor", *shared]
    done = agl(*arguments, "--output", "json", **NOBODY)
    assert done.returncode == 3
    assert (
        '"name":"bootstrap_servers","environment":"AGL_STREAM_BOOTSTRAP_SERVERS","value":"127.0.0.1:2"' in done.stdout
    )
    assert '"value":"other","source":"argument"' in done.stdout


def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_stream.cli.main", "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **NOBODY},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_ctrl_c_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_stream.cli.main", "status"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **NOBODY, "AGL_STREAM_CONNECT_TIMEOUT_SECONDS": "60"},
    )
    time.sleep(1.0)  # Into the wait for the broker; earlier would test the interpreter's start.
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"", b"")
    assert process.returncode == 130


def test_version_as_json() -> None:
    result = CliRunner().invoke(cli, ["version", "--output", "json"])
    assert result.exit_code == 0
    assert result.output.startswith('{"agl-stream":"')


def test_run_returns_the_code_and_does_not_raise(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    assert run(["version", "--nonsense"]) == 2
    assert "No such option" in capsys.readouterr().err
