"""A state store that is away is waited for, by everybody who needs it, from the start on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agl_stream.errors import EngineUnreachable
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.streams.store.waiting import Stopped, until_it_answers
from agl_stream.supervise import free_ports

from ..lifecycle.system import Worker, fresh_settings, wait_for


def test_asked_again_until_it_answers() -> None:
    answers = iter([EngineUnreachable("away"), EngineUnreachable("still away"), "there"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, EngineUnreachable):
            raise answer
        return answer

    assert until_it_answers(ask, threading.Event(), "test") == "there"


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()

    def ask() -> str:
        stop.set()
        raise EngineUnreachable("away")

    with pytest.raises(Stopped):
        until_it_answers(ask, stop, "test")


@pytest.mark.faults
def test_processes_that_start_without_their_store_wait_for_it(broker: BrokerThread, tmp_path: Path) -> None:
    """Instead of dying until the supervisor gives them up. Told to stop meanwhile they end as usual."""
    settings = fresh_settings(
        tmp_path,
        broker.bootstrap_servers,
        broker.registry_url,
        register_schemas=True,
        store_url=f"cassandra://127.0.0.1:{free_ports(1)[0]}/nobody",
        connect_timeout_seconds=5.0,
    )
    parts = ("lifecycle", "watchdog", "sink", "joiner")
    process = Worker(settings, only=",".join(parts))
    try:
        wait_for(
            lambda: process.process.poll() is not None or all(_tries(process, part) >= 3 for part in parts),
            60,
            "each has tried several times",
        )
        assert process.process.poll() is None, process.output()
        process.process.terminate()
        assert process.process.wait(30) == 0, process.output()
    finally:
        process.kill()


def _tries(process: Worker, part: str) -> int:
    return sum(
        f" {part}: no node of the state store" in line or line.startswith(f"{part}: no node")
        for line in process.output().splitlines()
    )
