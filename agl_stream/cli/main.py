"""The `agl-stream` command: finds the verb, loads it, turns errors into one line and an exit code.

Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 an engine (broker, registry, store) cannot be reached;
130 and 141 when interrupted by Ctrl-C or by a closed pipe, as is usual.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import click

from agl_stream.cli.shared import add_shared_options
from agl_stream.errors import AglStreamError
from agl_stream.supervise.orphan import die_with_parent

VERBS: dict[str, dict[str, str]] = {
    "Start": {
        "up": "Start broker, registry, streams and gateway on this machine.",
        "demo": "Train a small tool-using agent end to end and show how it went.",
    },
    "Work": {
        "produce": "Enqueue tasks from a JSON Lines file or stdin.",
        "runner": "Run an agent on the rollouts that are waiting.",
    },
    "Look": {
        "status": "Queue, lag, workers, rejects and resources at a glance.",
        "show": "Tell what happened to one rollout, on a timeline.",
        "tail": "Print decoded records of a topic.",
        "doctor": "Check settings, engines, folder and versions.",
    },
    "Single processes": {
        "engines": "Fetch, start and stop Kafka, Cassandra and others here.",
        "broker": "Run the embedded Kafka-protocol broker.",
        "registry": "Run the embedded schema registry.",
        "streams": "Run lifecycle, watchdog, span sink and joiner.",
        "gateway": "Run the gateway that records model calls.",
        "serve": "Serve the model being trained over the OpenAI protocol.",
        "trainer": "Train on joined triplets and publish model versions.",
    },
    "Set up and measure": {
        "topics": "Compare the cluster's topics with the catalogue, or make them match.",
        "schemas": "Check the event schemas, and put them into the registry.",
        "store": "Show or make the layout of the state store.",
        "connect": "Write rollouts and spans to a database or files through Kafka Connect.",
        "bench": "Measure spans/s, rollouts/s or the broker on this machine.",
        "version": "Print versions.",
    },
}
"""Section -> verb -> one-line help. Here and not in the verbs' modules, so that listing imports none."""

ONE_LINE_HELP = {verb: line for section in VERBS.values() for verb, line in section.items()}


_COMPLETION_VARIABLE = "_AGL_STREAM_COMPLETE"


class LazyGroup(click.Group):
    """Imports `agl_stream.cli.<verb>` when that verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(ONE_LINE_HELP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ONE_LINE_HELP:
            return None
        command: click.Command = importlib.import_module(f"agl_stream.cli.{cmd_name}").command
        return add_shared_options(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in ONE_LINE_HELP:
            near = difflib.get_close_matches(args[0], ONE_LINE_HELP, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "`agl-stream --help` lists the verbs."
            raise click.UsageError(f"no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in VERBS.items():
            with formatter.section(section):
                formatter.write_dl(list(verbs.items()), col_max=12)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "auto_envvar_prefix": "AGL_STREAM"}
"""The prefix gives every option of a verb an environment name: AGL_STREAM_TRAINER_MODEL is `trainer --model`."""


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
def cli() -> None:
    """Trains AI agents from what they do, with a Kafka log between the agents and the learner.

    Every setting has an environment name AGL_STREAM_<NAME>, and every option of a verb AGL_STREAM_<VERB>_<OPTION>.
    Inside the folder of a running `agl-stream up` no setting is needed. `agl-stream doctor` shows all settings and
    where each comes from.
    """


add_shared_options(cli)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises for an expected error."""
    # Warnings of libraries belong in the log of whoever debugs them, not between a verb's lines.
    logging.captureWarnings(True)
    try:
        if _COMPLETION_VARIABLE in os.environ:
            cli.main(prog_name="agl-stream")  # A shell asks what could follow; click answers and exits.
        # Not cli.main, which has its own ideas about closed pipes and interrupts.
        with cli.make_context("agl-stream", list(sys.argv[1:] if argv is None else argv)) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except AglStreamError as error:
        click.echo(f"agl-stream: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader (head, a closed pager) has what it wanted. Nothing may be written any more, also not
        # by the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def main() -> None:
    """Entry point of the console script and of `python -m agl_stream.cli.main`."""
    die_with_parent()
    sys.exit(run())


if __name__ == "__main__":
    main()
