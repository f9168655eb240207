"""What all engines share: a folder, nodes in it, ports kept over restarts."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from agl_stream.errors import PortInUse, UsageError
from agl_stream.infra.servers.process import ServerProcess
from agl_stream.supervise import free_ports
from agl_stream.supervise.ports import is_free

HOST = "127.0.0.1"
CONFIG_FOLDER = Path(__file__).parent / "config"
LOG4J_OPTION = f"-Dlog4j2.configurationFile={CONFIG_FOLDER / 'log4j2.properties'}"

_PORTS_FILE = "ports.json"
_COUNT_FILE = "nodes"


class Engine:
    """Servers of one kind in one folder. Start it again on the same folder: same addresses, same data.

    As a context manager it is started and, at the end, stopped. A subclass makes `nodes`.
    """

    nodes: list[ServerProcess]
    version: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cancelled = threading.Event()
        """Set from another thread, it makes `start` give up with Cancelled."""

    @property
    def address(self) -> str:
        """What a client is told."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, str]:
        """Settings of agl-stream that make it use this engine."""
        return {}

    def start(self) -> None:
        """Start all nodes and wait until each is ready. Raises ServerFailed, ToolMissing, Cancelled."""
        try:
            self.spawn()
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> None:
        """Start all nodes without waiting, as far as they can start side by side."""
        for node in self.nodes:
            node.start()

    def wait_ready(self) -> None:
        """Wait until all nodes serve."""
        for node in self.nodes:
            node.wait_ready(self.cancelled)

    def stop(self) -> None:
        """End all nodes in order, side by side."""
        for node in self.nodes:
            node.ask_to_stop()
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """SIGKILL to all nodes."""
        for node in self.nodes:
            node.kill()

    def rss_bytes(self) -> int:
        """Resident memory of all nodes."""
        return sum(node.rss_bytes() for node in self.nodes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def keep_count(self, wanted: int | None) -> int:
        """How many nodes: as many as the folder's data is of, else the wanted number, else one.

        Raises UsageError when data of another number of nodes is there.
        """
        place = self.folder / _COUNT_FILE
        kept = int(place.read_text()) if place.exists() else None
        if wanted is not None and kept is not None and wanted != kept:
            raise UsageError(
                f"{self.folder} holds the data of {kept} node(s), not of {wanted}: start it with {kept}, "
                "or remove the folder to begin anew"
            )
        count = wanted or kept or 1
        place.write_text(f"{count}\n")
        return count

    def keep_ports(
        self,
        *names: str,
        wanted: Mapping[str, int | None] | None = None,
        preferred: Mapping[str, int | None] | None = None,
    ) -> dict[str, int]:
        """A port for each name: the wanted one, else the one kept from an earlier start, else the preferred one if it
        is free, else a free one. None: nothing wanted, nothing preferred.

        Raises PortInUse when a kept or wanted port is taken by somebody else.
        """
        place = self.folder / _PORTS_FILE
        ports: dict[str, int] = json.loads(place.read_text()) if place.exists() else {}
        ports = {name: ports[name] for name in names if name in ports}
        ports |= {name: port for name, port in (wanted or {}).items() if port}
        for name, port in ports.items():
            if not is_free(port):
                raise PortInUse(
                    f"port {port} ({name} of {self.folder.name}) is in use: end what listens there, "
                    f"or remove {place} to have other ports"
                )
        for name, port in (preferred or {}).items():
            if port and name not in ports and port not in ports.values() and is_free(port):
                ports[name] = port
        missing = [name for name in names if name not in ports]
        ports |= (
            dict(zip(missing, free_ports(len(missing), without=set(ports.values())), strict=True)) if missing else {}
        )
        place.write_text(json.dumps(ports) + "\n")
        return ports


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values of a Java properties file as these are written: KEY=VALUE lines and # comments."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return {k: v for k, _, v in (line.partition("=") for line in lines if line and not line.startswith("#"))}


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write a Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))


def temporary_folder(name: str) -> tuple[Path, Callable[[], None]]:
    """A new folder below the system's temporary one, and what removes it; AGL_STREAM_KEEP_ENGINES=1 keeps it.

    Others may enter it (not list it): PostgreSQL runs as a user of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"agl-{name}-"))
    folder.chmod(0o711)

    def remove() -> None:
        if os.environ.get("AGL_STREAM_KEEP_ENGINES") != "1":
            shutil.rmtree(folder, ignore_errors=True)

    return folder, remove
