"""`agl-stream produce`: tasks from a JSON Lines file or stdin onto the log."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings


@click.command(short_help="Enqueue tasks from a JSON Lines file or stdin.")
@click.argument("source", metavar="FILE.jsonl|-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--group-size", type=click.IntRange(1), help="Enqueue each task this many times, as one group.")
@click.option("--mode", type=click.Choice(["train", "val", "test"]), help="Mode of tasks that do not say one.")
@click.option("--run-id", help="Run the tasks belong to, unless they say one.")
@click.option("--resources-id", help="Resources to run with, unless a task says so; default: the latest.")
@click.option("--raw", is_flag=True, help="Each line is the input itself, whatever keys it has.")
@output_option
def command(
    source: str,
    group_size: int | None,
    mode: str | None,
    run_id: str | None,
    resources_id: str | None,
    raw: bool,
    output: str,
) -> None:
    """Enqueue one rollout for each line of FILE.jsonl, or of stdin (-).

    A line that is an object with any of the keys input, rollout_id, mode, resources_id, resources_version, config,
    metadata, run_id, group_id, group_size is a task: it must have input and no other keys. Any other JSON value is
    itself the input. A line that cannot be enqueued is reported with its number and reason, the rest goes on, and
    the exit code is 1. Tasks with a rollout_id may be produced again: the same id is the same request.
    """
    from agl_stream.producers.event_producer import EventProducer
    from agl_stream.producers.task_file import TaskFile
    from agl_stream.producers.task_producer import TaskProducer

    settings = load_settings()
    name = "stdin" if source == "-" else source
    with click.open_file(source, "rb") as stream, EventProducer(settings, name="produce") as producer:
        producer.check()
        file = TaskFile(
            TaskProducer(settings, producer=producer),
            on_reject=lambda line, reason: click.echo(f"{name}:{line}: {reason}", err=True),
            defaults={"mode": mode, "run_id": run_id, "resources_id": resources_id},
            group_size=group_size,
            raw=raw,
            max_line_bytes=settings.max_task_bytes,
        )
        with _progress(stream) as advance:
            outcome = file.run(stream, advance)
    if output == "json":
        summary: dict[str, object] = {"produced": outcome.produced, "rejected": outcome.rejected}
        if outcome.rollout_ids is not None:
            summary["rollout_ids"] = outcome.rollout_ids
        emit_json(summary)
    else:
        lines = "line" if outcome.rejected == 1 else "lines"
        click.echo(f"{outcome.produced:,} rollouts enqueued, {outcome.rejected:,} {lines} rejected")
    click.get_current_context().exit(1 if outcome.rejected else 0)


@contextmanager
def _progress(stream: IO[bytes]) -> Iterator[Callable[[int], object]]:
    """A bar on stderr by bytes read, where somebody looks at it and the length is known; else nothing."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, AttributeError):
        status = None
    if status is None or not stat.S_ISREG(status.st_mode) or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=status.st_size, label="enqueuing", file=sys.stderr) as bar:
        yield bar.update
