"""The embedded schema registry: a Confluent-compatible HTTP server over one data folder, in the current event loop."""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType

from aiohttp import web

from agl_stream.errors import FolderNotWritable, PortInUse, SettingError
from agl_stream.infra.embedded.registry.app import build_app
from agl_stream.infra.embedded.registry.compatibility import LEVELS
from agl_stream.infra.embedded.registry.store import SchemaStore
from agl_stream.infra.embedded.storage import FolderLock

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MAX_BODY_BYTES = 1024 * 1024


class EmbeddedRegistry:
    """`async with EmbeddedRegistry(folder) as registry:` serves on `registry.url` until the block ends.

    Schemas and their ids are in the folder before they are answered and survive a kill. One process at a time may
    use a folder; the broker's folder is another one. Only loopback addresses are served.
    """

    def __init__(
        self,
        data_dir: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        compatibility: str = "FULL_TRANSITIVE",
        read_only: bool = False,
    ) -> None:
        """Port 0 takes a free one; `compatibility` is the level of subjects that have none of their own;
        `read_only` refuses every registration and change (error 42205). Raises SettingError."""
        if host not in _LOOPBACK:
            raise SettingError(
                f"registry host {host!r} is not a loopback address; the embedded registry has no authentication. "
                "Use 127.0.0.1, or run another Confluent-compatible registry for other machines."
            )
        if compatibility not in LEVELS:
            raise SettingError(f"registry compatibility {compatibility!r} is unknown; use one of {', '.join(LEVELS)}")
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self._level = compatibility
        self._read_only = read_only
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Load the folder and listen. Raises PortInUse, FolderNotWritable (FolderInUse) or DamagedFile."""
        self._lock = FolderLock(self.data_dir, "registry")
        try:
            try:
                self._store = SchemaStore(
                    self.data_dir / "registry.jsonl", default_level=self._level, read_only=self._read_only
                )
            except OSError as error:
                raise FolderNotWritable(
                    f"registry: cannot use the data folder {self.data_dir} ({error}). "
                    "Give another folder with --dir, or make this one writable."
                ) from error
            await self._listen()
        except BaseException:
            self._lock.release()
            raise

    async def _listen(self) -> None:
        runner = web.AppRunner(build_app(self._store, _MAX_BODY_BYTES), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, shutdown_timeout=2.0)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            self._store.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUse(
                f"registry: port {self.port} on {self.host} is in use. "
                "Stop what uses it, or give another with --port (0 takes a free one)."
            ) from error
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Close the connections and let go of the folder."""
        if self._runner is None:
            return
        await self._runner.cleanup()
        self._runner = None
        self._store.close()
        self._lock.release()

    async def __aenter__(self) -> EmbeddedRegistry:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
