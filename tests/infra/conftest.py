"""Broker processes that can be killed, and raw connections for what no client would send."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class BrokerProcess:
    """`agl-stream broker` as a child process on one folder; start again after kill() keeps port and data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._log = folder.parent / f"{folder.name}.log"
        self.port = 0
        self.start()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "agl_stream.cli.main", "broker", "--output", "json", *self._options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port), "--dir", str(self._folder)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log()
        self.port = int(json.loads(line)["bootstrap_servers"].rpartition(":")[2])

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def log(self) -> str:
        return self._log.read_text()

    def memory_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        if self.is_running():
            self.kill()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data")
    yield process
    process.close()


class RawConnection:
    """A socket to a broker that speaks in bytes."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send(struct.pack(">i", len(body)) + body)

    def read_frame(self) -> bytes | None:
        """The next answer; None when the broker closed the connection."""
        head = self._read(4)
        return None if head is None else self._read(struct.unpack(">i", head)[0])

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                chunk = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return data

    def is_closed_within(self, seconds: float) -> bool:
        self._socket.settimeout(seconds)
        try:
            return self._read(1) is None
        except TimeoutError:
            return False

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw(bootstrap_servers: str) -> Iterator[RawConnection]:
    connection = RawConnection(bootstrap_servers)
    yield connection
    connection.close()


@pytest.fixture
def connect():
    """Open raw connections to any broker; closed after the test."""
    opened: list[RawConnection] = []

    def open_one(bootstrap_servers: str) -> RawConnection:
        opened.append(RawConnection(bootstrap_servers))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def wait_until():
    def wait(condition, seconds: float = 20.0, what: str = "the condition") -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true in {seconds:.0f} s"
            time.sleep(0.01)

    return wait
