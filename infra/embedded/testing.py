"""A broker, and a registry beside it, for tests of other rooms: in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.server.broker import EmbeddedBroker

_START_SECONDS = 30.0


class BrokerThread:
    """`with BrokerThread() as broker:` gives `bootstrap_servers`, and `registry_url` with `registry=True`.

    The folder is temporary unless given; a given one is kept, and a second BrokerThread on it finds the data.
    Groups form without the initial delay, so that tests do not wait for members that never come.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        registry: bool = False,
        port: int = 0,
        config: BrokerConfig | None = None,
    ) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="agl-broker-"))
        self._with_registry = registry
        self._port = port
        self._config = config or BrokerConfig(group_initial_rebalance_delay_ms=0)
        self._started: Future[tuple[str, str]] = Future()
        self._thread = threading.Thread(target=self._run, name="embedded-broker", daemon=True)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            try:
                broker = EmbeddedBroker(self.data_dir / "broker", port=self._port, config=self._config)
                await stack.enter_async_context(broker)
                registry_url = ""
                if self._with_registry:
                    from agl_stream.infra.embedded.registry.service import EmbeddedRegistry

                    registry = await stack.enter_async_context(EmbeddedRegistry(self.data_dir / "registry"))
                    registry_url = registry.url
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                self._started.set_exception(error)
                return
            self.broker = broker
            self._started.set_result((broker.bootstrap_servers, registry_url))
            await self._stop.wait()

    def __enter__(self) -> BrokerThread:
        """Start; raises what the broker or the registry raises."""
        self._thread.start()
        self.bootstrap_servers, self.registry_url = self._started.result(_START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
