"""`agl-stream registry`: the embedded schema registry as a process."""

from __future__ import annotations

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings


@click.command("registry", short_help="Run the embedded schema registry.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--compatibility",
    default="FULL_TRANSITIVE",
    show_default=True,
    help="Level of subjects that have none of their own: NONE, BACKWARD, FORWARD, FULL, each also _TRANSITIVE.",
)
@click.option("--read-only", is_flag=True, help="Refuse every registration and change (error 42205).")
@output_option
def command(port: int, compatibility: str, read_only: bool, output: str) -> None:
    """Serve a Confluent-compatible Avro registry on 127.0.0.1 from <dir>/registry until SIGTERM or Ctrl-C.

    Prints one line when it is ready.
    """
    import asyncio

    from agl_stream.infra.embedded.process import serve_until_signalled
    from agl_stream.infra.embedded.registry.service import EmbeddedRegistry

    registry = EmbeddedRegistry(
        load_settings().folder / "registry", port=port, compatibility=compatibility.upper(), read_only=read_only
    )

    def announce() -> None:
        if output == "json":
            emit_json({"registry_url": registry.url, "data_dir": str(registry.data_dir)})
        else:
            click.echo(f"registry ready on {registry.url}, data in {registry.data_dir}")

    asyncio.run(serve_until_signalled(registry, announce))
