"""A host of its own for one process: a network namespace behind a cable that can be pulled, and a wall clock that can
be set.

What the process knows as 127.0.0.1 leads through the cable to this host's loopback, port by port, so that the
addresses which engines announce lead there as well. Needs root, `ip` and a C compiler.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from agl_stream.infra.servers.process import ServerProcess

HERE = Path(__file__).parent
_FORWARD = HERE / "forward.py"
_PREFIX = "agl-far-"
_count = itertools.count()


class FarHost:
    """Made at ``__enter__``, gone with all that runs in it at ``__exit__``."""

    def __init__(self, folder: Path, ports: Iterable[int]) -> None:
        self._folder, self._ports = folder, [str(port) for port in ports]
        self._stack = ExitStack()
        pid, count = os.getpid(), next(_count)
        number = (pid + count) % 250
        self._name, self._near, self._far = f"{_PREFIX}{pid}-{count}", f"agln{pid}.{count}", f"aglf{pid}.{count}"
        self._near_address, self._far_address = f"10.213.{number}.1", f"10.213.{number}.2"
        self._shift_file = folder / "clock-shift"

    @property
    def prefix(self) -> list[str]:
        """Before a command line, has it run there."""
        return ["ip", "netns", "exec", self._name]

    @property
    def env(self) -> dict[str, str]:
        """Gives a process that host's clock."""
        return {"LD_PRELOAD": str(self._folder / "clock_shift.so"), "CLOCK_SHIFT_FILE": str(self._shift_file)}

    def __enter__(self) -> FarHost:
        try:
            self._make_network()
            self._make_clock()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut(self) -> None:
        """Pull the cable: connections stay open, and nothing comes through."""
        _run("ip", "link", "set", self._near, "down")

    def heal(self) -> None:
        _run("ip", "link", "set", self._near, "up")

    def shift_clock(self, seconds: float) -> None:
        """Set the host's wall clock so much ahead of the true time."""
        # in one write, which a process that reads it meanwhile sees whole
        with self._shift_file.open("r+b", buffering=0) as file:
            file.write(int(seconds * 1e9).to_bytes(8, sys.byteorder, signed=True))

    def _make_network(self) -> None:
        _remove_those_of_the_dead()
        _run("ip", "netns", "add", self._name)
        self._stack.callback(_run, "ip", "netns", "delete", self._name)
        _run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
        self._stack.callback(subprocess.run, ["ip", "link", "delete", self._near], capture_output=True, check=False)
        _run("ip", "address", "add", f"{self._near_address}/24", "dev", self._near)
        _run("ip", "link", "set", self._near, "up")
        for command in (
            ["address", "add", f"{self._far_address}/24", "dev", self._far],
            ["link", "set", self._far, "up"],
            ["link", "set", "lo", "up"],
        ):
            _run(*self.prefix, "ip", *command)
        near = [sys.executable, str(_FORWARD), self._near_address, "127.0.0.1", *self._ports]
        far = [*self.prefix, sys.executable, str(_FORWARD), "127.0.0.1", self._near_address, *self._ports]
        for name, command in (("forward-near", near), ("forward-far", far)):
            forwarder = ServerProcess(
                name, command, self._folder, ready=lambda process: process.printed_since_start("forwarding")
            )
            forwarder.start()
            self._stack.callback(forwarder.kill)
            forwarder.wait_ready()

    def _make_clock(self) -> None:
        self._shift_file.write_bytes(bytes(8))
        library = self._folder / "clock_shift.so"
        _run("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(HERE / "clock_shift.c"), "-ldl")


def _remove_those_of_the_dead() -> None:
    """Hosts whose tests were killed. With the namespace goes its end of the cable, and with that the other end."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(_PREFIX)):
        if not Path(f"/proc/{name.removeprefix(_PREFIX).partition('-')[0]}").exists():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
