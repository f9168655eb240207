"""`agl-stream version`: versions of agl-stream, Python and the parts that matter."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from agl_stream.cli.output import emit_json, output_option

PACKAGES = (
    "confluent-kafka",
    "aiokafka",
    "faust-streaming",
    "fastavro",
    "kio",
    "torch",
    "transformers",
    "verl",
)


def versions() -> dict[str, str | None]:
    """Package -> installed version, None when it is not installed. Reads metadata, imports nothing."""
    found: dict[str, str | None] = {
        "agl-stream": _installed("agl-stream"),
        "python": platform.python_version(),
    }
    found.update((name, _installed(name)) for name in PACKAGES)
    return found


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@click.command()
@output_option
def command(output: str) -> None:
    """Print the versions of agl-stream, Python and the packages it stands on."""
    found = versions()
    if output == "json":
        emit_json(found)
        return
    click.echo(f"agl-stream {found.pop('agl-stream')}")
    for name, version in found.items():
        click.echo(f"  {name} {version or '(not installed)'}")
