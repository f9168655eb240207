"""`agl-stream store plan|apply`: the state store's layout against this version's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.streams.store.change import Change

_SIGNS = {"create": "+", "migrate": "+", "configure": "~", "refuse": "!", "keep": " "}


@click.group()
def command() -> None:
    """Compare the state store's layout with this version's, or bring it there.

    The embedded store (SQLite) sees to itself; a Cassandra keyspace is made and changed by `store apply` only, and
    processes refuse to start on one that is behind or ahead. What is in the store can be rebuilt from the log.
    """


@command.command("plan")
@output_option
def plan_command(output: str) -> None:
    """Show what `store apply` would do. Changes nothing; exit status 1 when there is something to do."""
    from agl_stream.streams.store.layout import plan_store

    changes = plan_store(load_settings())
    _report(changes, output)
    if any(change.action != "keep" for change in changes):
        click.get_current_context().exit(1)


@command.command("apply")
@output_option
def apply_command(output: str) -> None:
    """Create and change what is missing. Safe to repeat, and safe at once with others: one goes first."""
    from agl_stream.streams.store.layout import apply_store

    _report(apply_store(load_settings()), output)


def _report(changes: list[Change], output: str) -> None:
    if output == "json":
        emit_json({"changes": [change.as_dict() for change in changes]})
        return
    for change in changes:
        click.echo(f"{_SIGNS[change.action]} {change.action:<9} {change.thing} {change.detail}".rstrip())
    if all(change.action == "keep" for change in changes):
        click.echo("the state store is up to date")
