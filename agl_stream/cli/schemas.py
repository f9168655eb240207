"""`agl-stream schemas check|apply`: the events' schemas, here and in the registry."""

from __future__ import annotations

import click

from agl_stream import connections
from agl_stream.cli.output import emit_json, output_option, table
from agl_stream.cli.shared import load_settings


@click.group()
def command() -> None:
    """Check the event schemas (schemas/avsc), and put them into the registry."""


@command.command("check")
@output_option
def check_command(output: str) -> None:
    """Check that every version of every event reads every other, and that each field is documented.

    Needs no registry. Exit status 1 when a version breaks the promise.
    """
    from agl_stream.errors import SchemaIncompatible
    from agl_stream.schemas import events
    from agl_stream.schemas.compatibility import check_history, style_faults

    results: dict[str, dict[str, object]] = {}
    for event_type in events.EVENT_TYPES:
        versions = events.history(event_type)
        faults = [fault for version in versions for fault in style_faults(version)]
        try:
            check_history(versions, event_type)
        except SchemaIncompatible as error:
            faults.append(str(error))
        results[event_type] = {"versions": len(versions), "faults": faults}
    bad = sum(1 for result in results.values() if result["faults"])
    if output == "json":
        emit_json({"events": results, "ok": not bad})
    else:
        for event_type, result in results.items():
            faults = result["faults"]
            assert isinstance(faults, list)
            verdict = "ok" if not faults else "; ".join(faults)
            click.echo(f"{event_type} ({result['versions']} version(s)): {verdict}")
    if bad:
        click.get_current_context().exit(1)


@command.command("apply")
@output_option
def apply_command(output: str) -> None:
    """Register every version of every event, oldest first, and hold the subjects to FULL_TRANSITIVE compatibility.

    Nothing else registers schemas, unless AGL_STREAM_REGISTER_SCHEMAS is on. Doing it again changes nothing.
    """

    settings = load_settings()
    ids = connections.registry_client(settings).register_all()
    if output == "json":
        emit_json({"registry_url": settings.registry_url, "ids": ids})
        return
    click.echo(f"registered at {settings.registry_url}")
    click.echo(table(["event", "schema id"], sorted(ids.items(), key=lambda item: item[1])))
