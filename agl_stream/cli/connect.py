"""`agl-stream connect list|apply|status|restart|remove`: the ready sinks on a Kafka Connect cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_stream.cli.output import emit_json, output_option, table
from agl_stream.cli.shared import load_settings
from agl_stream.errors import UsageError
from agl_stream.settings import Settings

if TYPE_CHECKING:
    from agl_stream.infra.connect.client import ConnectClient
    from agl_stream.infra.connect.plan import Change, Health

_SIGNS = {"create": "+", "update": "~", "keep": " "}


@click.group()
def command() -> None:
    """Write rollouts, attempts, triplets and spans to a database or files, through Kafka Connect.

    docs/connect.md describes the sinks, their tables and what a worker needs.
    """


def place_values(settings: Settings) -> dict[str, str]:
    """What fills the places of the ready configurations."""
    return {
        "namespace": settings.namespace,
        "replication_factor": str(settings.replication_factor),
        "registry_url": settings.connect_registry_url or settings.registry_url,
        "jdbc_url": settings.connect_jdbc_url,
        "jdbc_username": settings.connect_jdbc_username,
        "files_dir": settings.connect_files_dir or str(settings.folder / "exports"),
    }


def wanted_configs(sinks: tuple[str, ...], settings: Settings) -> dict[str, dict[str, str]]:
    """Connector name to configuration, for these sinks. Raises UsageError for an unknown one."""
    from agl_stream.infra.connect.sinks import connector_name, render

    return {connector_name(settings.namespace, sink): render(sink, place_values(settings)) for sink in sinks}


def _client(settings: Settings) -> ConnectClient:
    from agl_stream.infra.connect.client import ConnectClient

    return ConnectClient(settings.connect_url)


@command.command("list")
@output_option
def list_command(output: str) -> None:
    """Show the ready sinks, and which of them the cluster has and can run."""
    from agl_stream.infra.connect.sinks import connector_name, names, template

    settings = load_settings()
    client = _client(settings)
    plugins, existing = client.plugins(), client.configs()
    rows = []
    for sink in names():
        config = template(sink)
        rows.append(
            {
                "sink": sink,
                "topic": config["topics"].replace("{{namespace}}", settings.namespace),
                "writes": config.get("collection.name.format") or Path(config["file"]).name,
                "plugin": config["connector.class"] in plugins,
                "applied": connector_name(settings.namespace, sink) in existing,
            }
        )
    if output == "json":
        emit_json({"connect_url": settings.connect_url, "sinks": rows})
        return
    words = {True: "yes", False: "no"}
    click.echo(
        table(
            ["sink", "topic", "writes", "plugin installed", "applied"],
            [[row["sink"], row["topic"], row["writes"], words[row["plugin"]], words[row["applied"]]] for row in rows],
        )
    )


@command.command("apply")
@click.argument("sinks", nargs=-1, metavar="SINK...")
@click.option("--all", "every", is_flag=True, help="All ready sinks.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@output_option
def apply_command(sinks: tuple[str, ...], every: bool, dry_run: bool, output: str) -> None:
    """Make the cluster run these sinks as configured here. Doing it again changes nothing."""
    from agl_stream.infra.connect.plan import plan
    from agl_stream.infra.connect.sinks import names, places

    if every == bool(sinks):
        raise UsageError("name the sinks to apply, or give --all; `agl-stream connect list` shows them")
    chosen = tuple(names()) if every else sinks
    settings = load_settings()
    wanted = wanted_configs(chosen, settings)
    client = _client(settings)
    changes = plan(wanted, client.configs())
    if not dry_run:
        if any("files_dir" in places(sink) for sink in chosen) and not settings.connect_files_dir:
            (settings.folder / "exports").mkdir(parents=True, exist_ok=True)  # The worker of this machine writes there.
        for change in changes:
            if change.action != "keep":
                client.put(change.connector, wanted[change.connector])
    _report_changes(changes, dry_run, output)


def _report_changes(changes: list[Change], dry_run: bool, output: str) -> None:
    if output == "json":
        emit_json({"changes": [change.as_dict() for change in changes], "dry_run": dry_run})
        return
    for change in changes:
        detail = f" ({', '.join(change.differs)})" if change.differs else ""
        click.echo(f"{_SIGNS[change.action]} {change.action:<7} {change.connector}{detail}")


@command.command("status")
@output_option
def status_command(output: str) -> None:
    """Show how the applied sinks are doing. Exit status 1 when one has failed."""
    settings = load_settings()
    found = applied_health(_client(settings), settings)
    if output == "json":
        emit_json({"connect_url": settings.connect_url, "connectors": [one.as_dict() for one in found]})
    else:
        rows = [[one.connector, one.state.lower(), _tasks(one)] for one in found]
        click.echo(table(["connector", "state", "tasks"], rows))
        for one in found:
            if one.error:
                click.echo(f"{one.connector}: {one.error}")
    if any(one.failed for one in found):
        click.get_current_context().exit(1)


def _tasks(one: Health) -> str:
    return ", ".join(f"{one.tasks.count(state)} {state.lower()}" for state in dict.fromkeys(one.tasks)) or "none yet"


def applied_health(client: ConnectClient, settings: Settings) -> list[Health]:
    """Health of the namespace's sinks that the cluster has."""
    from agl_stream.infra.connect.plan import health
    from agl_stream.infra.connect.sinks import connector_name, names

    existing = client.configs()
    wanted = [connector_name(settings.namespace, sink) for sink in names()]
    return [health(name, client.status(name)) for name in wanted if name in existing]


@command.command("restart")
@output_option
def restart_command(output: str) -> None:
    """Restart what has failed of the applied sinks; what runs is left alone. They go on where they stopped."""
    settings = load_settings()
    client = _client(settings)
    failed = [one.connector for one in applied_health(client, settings) if one.failed]
    for name in failed:
        client.restart_failed(name)
    if output == "json":
        emit_json({"restarted": failed})
        return
    click.echo("\n".join(f"restarted {name}" for name in failed) or "nothing has failed")


@command.command("remove")
@click.argument("sinks", nargs=-1, required=True, metavar="SINK...")
@output_option
def remove_command(sinks: tuple[str, ...], output: str) -> None:
    """Remove sinks from the cluster. Tables and files stay; applied again, they go on where they stopped."""
    settings = load_settings()
    client = _client(settings)
    existing = client.configs()
    removed = [name for name in wanted_configs(sinks, settings) if name in existing]
    for name in removed:
        client.delete(name)
    if output == "json":
        emit_json({"removed": removed})
        return
    click.echo("\n".join(f"removed {name}" for name in removed) or "none of them is applied")
