"""Options of `up` and `demo` that choose the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the parameters `engine`, `store` and `registry` (see agl_stream.local.engines)."""
    for option in (
        click.option(
            "--registry",
            type=click.Choice(["embedded", "apicurio"]),
            default="embedded",
            show_default=True,
            help="Schema registry: the embedded one or Apicurio.",
        ),
        click.option(
            "--store",
            type=click.Choice(["sqlite", "cassandra"]),
            help="State store: SQLite or Apache Cassandra, one node. Default: AGL_STREAM_STORE_URL, else SQLite.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["embedded", "kafka"]),
            default="embedded",
            show_default=True,
            help="The log: the embedded broker or Apache Kafka, one node. Real engines need Java 17, and Maven once.",
        ),
    ):
        command = option(command)
    return command
