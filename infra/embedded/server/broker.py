"""The embedded broker: a Kafka-protocol server over one data folder, inside the current event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from pathlib import Path
from types import TracebackType

from agl_stream.errors import FolderNotWritable, PortInUse, SettingError
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.server.connection import Connection
from agl_stream.infra.embedded.server.housekeeping import Housekeeping
from agl_stream.infra.embedded.server.listener import Listener
from agl_stream.infra.embedded.server.metrics_page import MetricsPage
from agl_stream.infra.embedded.server.node import Node
from agl_stream.infra.embedded.storage import FolderInUse, FolderLock

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TAKEOVER_LOOK_SECONDS = 0.05


class EmbeddedBroker:
    """`async with EmbeddedBroker(folder) as broker:` serves on `broker.bootstrap_servers` until the block ends.

    Everything acknowledged is in the folder and survives a kill of the process. One process at a time may use a
    folder. Only loopback addresses are served, as the broker knows no users.
    """

    def __init__(
        self,
        data_dir: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        config: BrokerConfig | None = None,
    ) -> None:
        """Port 0 takes a free one. Raises SettingError for a host that is not loopback."""
        if host not in _LOOPBACK:
            raise SettingError(
                f"broker host {host!r} is not a loopback address; the embedded broker has no authentication. "
                "Use 127.0.0.1, or run Apache Kafka for other machines."
            )
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self.config = config or BrokerConfig()
        self.metrics_url: str | None = None
        """Address of the metrics page, while the broker runs with `metrics_port`."""
        self._metrics_page: MetricsPage | None = None
        self._running = False

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> set[Connection]:
        """The connections that are open now."""
        return self._listener.connections

    async def start(self) -> None:
        """Recover the folder and listen. Waits `takeover_seconds` for a folder or port that another process has.

        Raises PortInUse, FolderNotWritable (FolderInUse when another process has it) or DamagedFile.
        """
        _raise_file_limit()
        deadline = asyncio.get_running_loop().time() + self.config.takeover_seconds
        lock = await self._lock_folder(deadline)
        try:
            try:
                self.node = Node(self.data_dir, self.config)
            except OSError as error:
                raise FolderNotWritable(
                    f"broker: cannot use the data folder {self.data_dir} ({error}). "
                    "Give another folder with --dir, or make this one writable."
                ) from error
            try:
                await self._listen(deadline)
                await self._open_metrics_page()
            except BaseException:
                await self.node.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self._housekeeping = Housekeeping(self.node)
        self._housekeeping.start()
        self._running = True

    async def _lock_folder(self, deadline: float) -> FolderLock:
        while True:
            try:
                return FolderLock(self.data_dir, "broker")
            except FolderInUse:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(_TAKEOVER_LOOK_SECONDS)

    async def _listen(self, deadline: float) -> None:
        node = self.node
        node.start()
        self._listener = Listener(node)
        while True:
            try:
                self.port = self._listener.open(self.host, self.port)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if asyncio.get_running_loop().time() >= deadline:
                    raise PortInUse(
                        f"broker: port {self.port} on {self.host} is in use. "
                        "Stop what uses it, or give another with --port (0 takes a free one)."
                    ) from error
            await asyncio.sleep(_TAKEOVER_LOOK_SECONDS)
        node.host, node.port = self.host, self.port

    async def _open_metrics_page(self) -> None:
        wanted = self.config.metrics_port
        if wanted is None:
            return
        page = MetricsPage(self.node, self._listener)
        try:
            port = await page.open(self.host, wanted)
        except OSError as error:
            await self._listener.close(0)
            raise PortInUse(
                f"broker: the metrics port {wanted} on {self.host} cannot be used ({error.strerror}). "
                "Stop what uses it, or give another with --metrics-port (0 takes a free one)."
            ) from error
        self._metrics_page, self.metrics_url = page, f"http://{self.host}:{port}/metrics"

    async def stop(self) -> None:
        """Answer what clients have asked already, close the connections, flush, and let go of the folder."""
        if not self._running:
            return
        self._running = False
        if self._metrics_page is not None:
            await self._metrics_page.close()
        await self._listener.close(self.config.stop_seconds)
        await self._housekeeping.stop()
        await self.node.close()
        self._lock.release()

    async def __aenter__(self) -> EmbeddedBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _raise_file_limit() -> None:
    """Each segment that is read or written has an open file; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
