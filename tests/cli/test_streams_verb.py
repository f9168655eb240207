"""`agl-stream streams`: which parts run, and what happens when one of them fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from agl_stream.cli import streams
from agl_stream.cli.main import run
from agl_stream.errors import EngineUnreachable


def test_a_part_that_does_not_exist(capsys: pytest.CaptureFixture[str]):
    assert run(["streams", "--only", "lifecycle,nonsense"]) == 2
    assert "choose from lifecycle, watchdog, sink, joiner" in capsys.readouterr().err


def patient(settings: object, stop: threading.Event, ready: Callable[[], None]) -> None:
    ready()
    stop.wait()


def unreachable(settings: object, stop: threading.Event, ready: Callable[[], None]) -> None:
    raise EngineUnreachable("no broker there; start one")


def broken(settings: object, stop: threading.Event, ready: Callable[[], None]) -> None:
    time.sleep(0.2)
    raise ZeroDivisionError("a bug")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in (("lifecycle", patient), ("watchdog", unreachable), ("sink", broken)):
        monkeypatch.setitem(streams.PARTS, name, f"{__name__}:{function.__name__}")
    functions = {f.__name__: f for f in (patient, unreachable, broken)}
    monkeypatch.setattr(streams, "_load", lambda place: functions[place.rpartition(":")[2]])
    monkeypatch.setattr(streams, "_stop_on_signals", lambda stop: None)
    monkeypatch.setattr(streams, "_never_hang", lambda: None)


@pytest.mark.usefixtures("parts")
def test_a_part_that_fails_ends_the_process_with_its_error(capsys: pytest.CaptureFixture[str]):
    assert run(["streams", "--only", "lifecycle,watchdog"]) == 3
    assert "watchdog: no broker there" in capsys.readouterr().err
    assert run(["streams", "--only", "sink,lifecycle"]) == 1
    assert "sink failed: ZeroDivisionError: a bug" in capsys.readouterr().err


@pytest.mark.usefixtures("parts")
def test_it_says_when_all_parts_are_ready(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def stop_soon(stop: threading.Event) -> None:
        threading.Timer(0.5, stop.set).start()

    monkeypatch.setattr(streams, "_stop_on_signals", stop_soon)
    assert run(["streams", "--only", "lifecycle"]) == 0
    assert "streams ready (lifecycle)" in capsys.readouterr().out
