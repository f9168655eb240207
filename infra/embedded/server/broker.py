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
from agl_stream.infra.embedded.server.node import Node
from agl_stream.infra.embedded.storage import FolderLock

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
        self._connections: set[Connection] = set()
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Recover the folder and listen.

        Raises PortInUse, FolderNotWritable (FolderInUse when another process has it) or DamagedFile.
        """
        _raise_file_limit()
        lock = FolderLock(self.data_dir, "broker")
        try:
            try:
                self.node = Node(self.data_dir, self.config)
            except OSError as error:
                raise FolderNotWritable(
                    f"broker: cannot use the data folder {self.data_dir} ({error}). "
                    "Give another folder with --dir, or make this one writable."
                ) from error
            try:
                await self._listen()
            except BaseException:
                await self.node.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self._housekeeping = Housekeeping(self.node, self._connections)
        self._housekeeping.start()

    async def _listen(self) -> None:
        node = self.node
        node.start()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(node, self._admit, self._lost), self.host, self.port, backlog=512
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUse(
                f"broker: port {self.port} on {self.host} is in use. "
                "Stop what uses it, or give another with --port (0 takes a free one)."
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        node.host, node.port = self.host, self.port

    def _admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self.config.max_connections:
            logger.warning(
                "connection from %s closed: max_connections is %d", connection.peer, self.config.max_connections
            )
            return False
        self._connections.add(connection)
        return True

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    async def stop(self) -> None:
        """Close the connections, flush, and let go of the folder."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        await self._housekeeping.stop()
        if self._connections:
            self._all_gone.clear()
            for connection in list(self._connections):
                connection.abort()
            await self._all_gone.wait()
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
