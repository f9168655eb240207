"""An embedded engine as the whole of a process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


async def serve_until_signalled(engine: AbstractAsyncContextManager[Any], on_ready: Callable[[], None]) -> None:
    """Run `engine` until SIGTERM or SIGINT, then stop it gracefully. `on_ready` is called when it serves."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with engine:
        on_ready()
        await stop.wait()
