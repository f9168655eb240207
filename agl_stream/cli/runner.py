"""`agl-stream runner`: run an agent on dispatched rollouts, as a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.consumers.runner import Runner

_CLEAN_UP_SECONDS = 5.0


@click.command(short_help="Run an agent on the rollouts that are waiting.")
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--slots", type=click.IntRange(min=1), help="Rollouts at once [env AGL_STREAM_RUNNER_SLOTS; 8].")
@click.option(
    "--name",
    help="Unique name that stays the same over restarts; it keeps its share of the work through a short restart. "
    "Default: runner-HOST-N.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    help="How long running rollouts may finish at a stop [env AGL_STREAM_DRAIN_SECONDS; 30].",
)
def command(agent: str, slots: int | None, name: str | None, drain_seconds: float | None) -> None:
    """Take rollouts and run an agent on each.

    MODULE:AGENT names a function or a LitAgent in a module of the working directory or an installed package;
    path/to/file.py:AGENT works as well. An agent takes the task and, by name, what else it asks for: llm,
    prompt_template, resources, rollout. It returns a number (the reward), a list of spans, or nothing.

    Any number of runners share the work. SIGTERM or Ctrl-C takes no more work and lets running rollouts finish; a
    second one stops at once.
    """
    import asyncio

    from agl_stream.consumers.runner import Runner, load_agent

    settings = load_settings(runner_slots=slots, drain_seconds=drain_seconds)
    found = load_agent(agent)

    def ready(worker_id: str) -> None:
        click.echo(f"runner ready: {worker_id} runs {agent}, {settings.runner_slots} rollouts at once")

    runner = Runner(settings, found, name=name, on_ready=lambda worker: ready(worker.worker_id))
    with _last_resort() as arm:
        asyncio.run(_run(runner, arm))


async def _run(runner: Runner, arm: Callable[[], None]) -> None:
    import asyncio
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, runner.request_stop)
    try:
        await runner.run()
    finally:
        arm()


@contextmanager
def _last_resort() -> Iterator[Callable[[], None]]:
    """The function given ends the process if what follows it takes longer than ``_CLEAN_UP_SECONDS``: by then
    everything is reported, and what still runs is a thread that waits for a broker which is away."""
    import os
    import threading

    timer = threading.Timer(_CLEAN_UP_SECONDS, os._exit, (1,))
    timer.daemon = True
    try:
        yield timer.start
    finally:
        timer.cancel()
