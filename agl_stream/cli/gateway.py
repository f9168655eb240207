"""`agl-stream gateway`: the LLM gateway as a process."""

from __future__ import annotations

import click

from agl_stream.cli.shared import load_settings
from agl_stream.settings import Settings


@click.command(short_help="Run the gateway that records model calls.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind; beyond loopback needs a token.")
@click.option("--port", default=4747, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: a free one.")
@click.option("--upstream", metavar="URL", help="OpenAI-compatible server [env AGL_STREAM_UPSTREAM_URL].")
def command(host: str, port: int, upstream: str | None) -> None:
    """Pass agents' model calls to an OpenAI-compatible server and record each as a span.

    Clients use http://HOST:PORT/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1 as their base URL. SIGTERM or Ctrl-C stops
    it: new calls are refused, calls in flight end (AGL_STREAM_GATEWAY_DRAIN_SECONDS).
    """
    import asyncio

    asyncio.run(_run(load_settings(upstream_url=upstream), host, port))


async def _run(settings: Settings, host: str, port: int) -> None:
    import asyncio
    import signal

    from agl_stream.producers.event_producer import EventProducer
    from agl_stream.producers.gateway.access import check_binding
    from agl_stream.producers.gateway.server import Gateway

    check_binding(host, settings.gateway_token)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with EventProducer(settings, name="gateway", linger_ms=settings.gateway_linger_ms) as producer:
        await asyncio.to_thread(producer.check)
        gateway = Gateway(settings, producer)
        bound_host, bound_port = await gateway.start(host, port)
        try:
            click.echo(f"gateway ready on http://{bound_host}:{bound_port}")
            await stopping.wait()
        finally:
            await gateway.stop()
