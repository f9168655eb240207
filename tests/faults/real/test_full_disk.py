"""The embedded broker's disk is full for a while: everybody waits, and goes on when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_stream.infra.servers.process import ServerProcess
from agl_stream.settings import Settings
from agl_stream.supervise import free_ports
from tests.faults.real.load import QUICK, Load

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

DISK_MIB = 64
FULL_SECONDS = 8.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, so small that it can be filled."""
    if os.geteuid() != 0:
        pytest.fail("a file system is mounted for this test: run it as root", pytrace=False)
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "agl-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def on_small_disk(disk: Path, model_dir: Path, tmp_path: Path) -> Iterator[Load]:
    (port,) = free_ports(1)
    broker = ServerProcess(
        "broker",
        [sys.executable, "-m", "agl_stream.cli.main", "broker", "--port", str(port), "-v"],
        tmp_path,
        env={"AGL_STREAM_DIR": str(disk)},
        ready=lambda process: process.printed_since_start("broker ready"),
    )
    broker.start()
    try:
        broker.wait_ready()
        settings = Settings(**QUICK, bootstrap_servers=f"127.0.0.1:{port}", namespace="d" + uuid.uuid4().hex[:6])
        with Load(settings, tmp_path / "load", model_dir) as load:
            yield load
        assert broker.running, broker.log_path.read_text()[-3000:]
    finally:
        broker.kill()


def test_disk_of_the_embedded_broker_full_and_freed(on_small_disk: Load, disk: Path) -> None:
    load = on_small_disk
    with load.flow():
        load.progress(8)
        since = time.monotonic()
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            until = time.monotonic() + FULL_SECONDS
            while time.monotonic() < until:  # also what the broker frees meanwhile
                _fill(file.fileno())
                time.sleep(0.05)
        stuck = load.watch.finished()
        time.sleep(0.5)
        assert load.watch.finished() == stuck, "nothing can end while nothing can be written"
        ballast.unlink()
        load.progress(16)
    load.settle(f"disk of the embedded broker full for {FULL_SECONDS:g} s", since)


def _fill(file: int) -> None:
    """Write until the disk takes no byte more."""
    for size in (1 << 20, 1 << 12, 1):
        try:
            while True:
                os.write(file, bytes(size))
        except OSError:
            continue
