"""`agl-stream broker`: the embedded Kafka-protocol broker as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.infra.embedded.config import FlushPolicy


@click.command("broker", short_help="Run the embedded Kafka-protocol broker.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--auto-create-topics", is_flag=True, help="Create topics that a client asks for and that do not exist.")
@click.option(
    "--default-partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Partitions of topics created without a number.",
)
@click.option(
    "--flush",
    type=click.Choice(["close", "interval", "every-write"]),
    default="close",
    show_default=True,
    help="When data is forced to disk: when a segment is closed, also every second, also before each acknowledgement. "
    "A kill of the process loses nothing in any case; a power cut may lose what was not forced.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics there; 0: a free port.")
@click.option(
    "--max-connections", type=click.IntRange(min=1), default=1000, show_default=True, help="Clients beyond are closed."
)
@click.option("--producer-byte-rate", type=click.FloatRange(min=1), help="Bytes a second that each client id may send.")
@click.option(
    "--consumer-byte-rate", type=click.FloatRange(min=1), help="Bytes a second that each client id may fetch."
)
@output_option
def command(
    port: int,
    auto_create_topics: bool,
    default_partitions: int,
    flush: FlushPolicy,
    metrics_port: int | None,
    max_connections: int,
    producer_byte_rate: float | None,
    consumer_byte_rate: float | None,
    output: str,
) -> None:
    """Serve the Kafka protocol on 127.0.0.1 from <dir>/broker until SIGTERM or Ctrl-C.

    For one machine: no replication, no users, no KIP-848 groups. Prints one line when it is ready.
    """
    import asyncio

    from agl_stream.infra.embedded.config import BrokerConfig
    from agl_stream.infra.embedded.process import serve_until_signalled
    from agl_stream.infra.embedded.server.broker import EmbeddedBroker

    config = BrokerConfig(
        auto_create_topics=auto_create_topics,
        default_partitions=default_partitions,
        flush_policy=flush,
        metrics_port=metrics_port,
        max_connections=max_connections,
        producer_byte_rate=producer_byte_rate,
        consumer_byte_rate=consumer_byte_rate,
    )
    broker = EmbeddedBroker(load_settings().folder / "broker", port=port, config=config)

    def announce() -> None:
        if output == "json":
            found = {"bootstrap_servers": broker.bootstrap_servers, "data_dir": str(broker.data_dir)}
            emit_json(found if broker.metrics_url is None else {**found, "metrics_url": broker.metrics_url})
        else:
            metrics = "" if broker.metrics_url is None else f", metrics on {broker.metrics_url}"
            click.echo(f"broker ready on {broker.bootstrap_servers}, data in {broker.data_dir}{metrics}")

    asyncio.run(serve_until_signalled(broker, announce))
