"""`agl-stream up`: the engines and streams of one machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from agl_stream.cli.engine_options import engine_options
from agl_stream.cli.output import emit_json, human_bytes, output_option
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.local.data_folder import Endpoints
    from agl_stream.local.system import Ports

BROKER_PORT, REGISTRY_PORT, GATEWAY_PORT, STORE_PORT = 9092, 8081, 4747, 9042


def claim_ports(
    broker: int | None, registry: int | None, gateway: int | None, store: int | None = None, *, with_store: bool = False
) -> tuple[Ports, list[str]]:
    """The ports to use, and a line for each default that had to give way; PortInUse for a given one in use.

    A port of the store is looked for only when there shall be one or it is given.
    """
    from agl_stream.local.system import Ports
    from agl_stream.supervise import claim_port

    taken: list[int] = []
    notes: list[str] = []
    wishes = [
        (broker, BROKER_PORT, "--broker-port"),
        (registry, REGISTRY_PORT, "--registry-port"),
        (gateway, GATEWAY_PORT, "--gateway-port"),
    ]
    if with_store or store is not None:
        wishes.append((store, STORE_PORT, "--store-port"))
    for wanted, default, option in wishes:
        port, replaced = claim_port(wanted, default, option=option, taken=taken)
        taken.append(port)
        if replaced:
            notes.append(f"port {default} is in use, {option} is {port} instead")
    return Ports(*taken), notes


@click.command()
@click.option("--broker-port", type=click.IntRange(1, 65535), help=f"Default {BROKER_PORT}, or a free one.")
@click.option("--registry-port", type=click.IntRange(1, 65535), help=f"Default {REGISTRY_PORT}, or a free one.")
@click.option("--gateway-port", type=click.IntRange(1, 65535), help=f"Default {GATEWAY_PORT}, or a free one.")
@click.option(
    "--store-port", type=click.IntRange(1, 65535), help=f"Of --store cassandra. Default {STORE_PORT}, or a free one."
)
@engine_options
@click.option(
    "--upstream", metavar="URL", help="OpenAI-compatible server behind the gateway [env AGL_STREAM_UPSTREAM_URL]."
)
@click.option("--upstream-model", metavar="NAME", help="Model agents are given [env AGL_STREAM_UPSTREAM_MODEL].")
@output_option
def command(
    broker_port: int | None,
    registry_port: int | None,
    gateway_port: int | None,
    store_port: int | None,
    engine: str,
    store: str | None,
    registry: str,
    upstream: str | None,
    upstream_model: str | None,
    output: str,
) -> None:
    """Start broker, registry, streams and gateway on this machine and keep them alive until Ctrl-C.

    Everything lives in one data folder (--dir); other verbs run below the same directory find the system
    without any setting. A process that dies is started again; logs are in FOLDER/logs. With --output json one
    line is printed once all is ready: bootstrap_servers, registry_url, gateway_url, data_dir.
    """
    from agl_stream.local.data_folder import DataFolder
    from agl_stream.local.engines import Engines
    from agl_stream.local.stopping import stop_on_signals
    from agl_stream.local.system import LocalSystem
    from agl_stream.supervise import Supervisor

    settings = load_settings(upstream_url=upstream, upstream_model=upstream_model)
    started = time.monotonic()

    def note(line: str) -> None:
        click.echo(f"agl-stream: {line}", err=True)

    engines = Engines(engine, store or "", registry)
    engines.fetch(settings, note)
    with stop_on_signals() as stop, DataFolder(settings.folder) as folder:
        ports, notes = claim_ports(
            broker_port, registry_port, gateway_port, store_port, with_store=engines.store == "cassandra"
        )
        for line in notes:
            note(line)
        with Supervisor(folder.log_dir, notify=note) as supervisor:
            system = LocalSystem(folder, supervisor, ports, settings, engines)
            system.start(cancelled=stop)
            if not stop.is_set():
                folder.publish(system.endpoints, system.settings())
                _announce(system.endpoints, output, time.monotonic() - started)
            while not stop.wait(0.5):
                supervisor.check()
            folder.withdraw()
            note("stopping")
        for name, usage in supervisor.usage().items():
            note(f"{name}: {usage.cpu_seconds:.1f} CPU seconds, at most {human_bytes(usage.max_rss_bytes)}")


def _announce(endpoints: Endpoints, output: str, seconds: float) -> None:
    if output == "json":
        emit_json(asdict(endpoints))
        return
    click.echo(
        f"ready in {seconds:.1f} s, data in {endpoints.data_dir}\n"
        f"  broker    {endpoints.bootstrap_servers}\n"
        f"  registry  {endpoints.registry_url}\n"
        f"  gateway   {endpoints.gateway_url}\n"
        "next, in another terminal here: agl-stream status\n"
        "Ctrl-C stops everything."
    )
