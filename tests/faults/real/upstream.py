"""The scripted inference server of the gateway's tests, on a thread."""

from __future__ import annotations

import asyncio
import threading

from tests.producers.inference_server import InferenceServer


class Upstream:
    """``url`` answers chat completions from ``__enter__`` to ``__exit__``."""

    def __enter__(self) -> Upstream:
        started = threading.Event()

        async def serve() -> None:
            self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
            async with InferenceServer() as server:
                self.url = server.url
                started.set()
                while not self._done.is_set():
                    # what it keeps of each call would grow for minutes
                    server.calls.clear()
                    try:
                        await asyncio.wait_for(self._done.wait(), 1.0)
                    except TimeoutError:
                        pass

        self._thread = threading.Thread(target=asyncio.run, args=(serve(),), name="upstream", daemon=True)
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)
