"""The server as a process: engine, HTTP, follower, and their common end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from agl_stream.errors import AglStreamError, PortInUse, UsageError
from agl_stream.settings import Settings
from agl_stream.trainer.server.config import ServeConfig

if TYPE_CHECKING:
    from agl_stream.trainer.server.follower import ResourcesFollower

log = logging.getLogger(__name__)

_CATCH_UP_SECONDS = 60.0
_WATCH_SECONDS = 1.0


async def serve(settings: Settings, config: ServeConfig, on_ready: Callable[[str, int], None]) -> None:
    """Serves until SIGTERM or SIGINT. ``on_ready(base_url, version)`` is called once requests are answered.

    Raises PortInUse, UsageError, EngineUnreachable; AglStreamError when engine or follower die, so that a supervisor
    starts the process again.
    """
    _refuse_open_door(settings, config)
    listener = _listen(config.host, config.port)
    # what follows takes seconds to import; a taken port is known before
    from aiohttp import web

    from agl_stream.trainer.server.app import make_app
    from agl_stream.trainer.server.engine import Engine
    from agl_stream.trainer.server.follower import ResourcesFollower

    port = listener.getsockname()[1]
    stop, failures = asyncio.Event(), list[BaseException]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(config.model_dir, config.engine)
    follower: ResourcesFollower | None = None
    runner = web.AppRunner(
        make_app(engine, model=config.served_name, api_key=settings.upstream_api_key),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=config.engine.drain_seconds,
    )
    try:
        if config.resources_id is not None:

            def failed(error: BaseException) -> None:
                failures.append(error)
                loop.call_soon_threadsafe(stop.set)

            follower = ResourcesFollower(
                settings,
                engine,
                loop,
                resources_id=config.resources_id,
                worker_id=config.worker_id or f"server-{socket.gethostname()}-{port}",
                on_failure=failed,
            )
            follower.start()
            await asyncio.to_thread(follower.caught_up, _CATCH_UP_SECONDS)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        if not failures:
            on_ready(f"http://{config.host}:{port}/v1", engine.version)
        while not stop.is_set() and engine.alive:
            try:
                await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
            except TimeoutError:
                continue
    finally:
        await runner.cleanup()
        if follower is not None:
            await asyncio.to_thread(follower.stop)
        died = not engine.alive
        engine.close()
        listener.close()
    if failures:
        error = failures[0]
        raise error if isinstance(error, AglStreamError) else AglStreamError(f"the resources follower ended: {error}")
    if died:
        raise AglStreamError("the generation thread has died; see the log above")


def _refuse_open_door(settings: Settings, config: ServeConfig) -> None:
    if config.host not in ("127.0.0.1", "localhost", "::1") and not settings.upstream_api_key:
        raise UsageError(
            f"--host {config.host} is reachable by others; set AGL_STREAM_UPSTREAM_API_KEY to the key callers must show"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Takes the port before the model is loaded, so that a taken one is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"--port {port} on {host} cannot be used ({error.strerror}); choose another, 0 is any"
        ) from None
    return listener
