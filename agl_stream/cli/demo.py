"""`agl-stream demo`: train a small tool-using agent end to end, watched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agl_stream.cli.engine_options import engine_options
from agl_stream.cli.output import emit_json, human_seconds, output_option, table


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=60, show_default=True, help="Training steps.")
@click.option("--prompts", type=click.IntRange(min=1), default=16, show_default=True, help="Prompts in each step.")
@click.option("--samples", type=click.IntRange(min=2), default=8, show_default=True, help="Rollouts of each prompt.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts and training.")
@click.option("--runners", type=click.IntRange(min=1), default=1, show_default=True, help="Runner processes.")
@click.option(
    "--runner-slots", type=click.IntRange(min=1), default=64, show_default=True, help="Rollouts at once in each runner."
)
@engine_options
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Run in this folder and keep it.")
@output_option
def command(
    steps: int,
    prompts: int,
    samples: int,
    seed: int,
    runners: int,
    runner_slots: int,
    engine: str,
    store: str | None,
    registry: str,
    keep: Path | None,
    output: str,
) -> None:
    """Train a small tool-using agent end to end on this machine and show how it went.

    Broker, registry, streams, gateway, inference server, runner and trainer run as separate processes on free
    ports. The agent is examples/01_tool_agent: plain openai client code that adds two digits and may call a
    calculator. Exit status 0 only when the reward rose and every rollout is accounted for. With --output json
    progress goes to stderr and one object to stdout.
    """
    from agl_stream.demo.plan import DemoPlan
    from agl_stream.demo.run import run_demo
    from agl_stream.demo.view import PlainView, RichView
    from agl_stream.local.engines import Engines
    from agl_stream.local.stopping import stop_on_signals
    from agl_stream.local.workplace import workplace

    engines = Engines(engine, store or "", registry)
    plan = DemoPlan(steps, prompts, samples, seed, runners, runner_slots)
    live = output == "text" and sys.stdout.isatty()
    view = RichView() if live else PlainView(sys.stdout if output == "text" else sys.stderr)
    with stop_on_signals() as stop, workplace(keep) as folder:
        try:
            result = run_demo(plan, folder, view, stop, engines)
        finally:
            view.close()
    if output == "json":
        emit_json(result)
    else:
        click.echo(report(result, keep, engines.options()))
    click.get_current_context().exit(0 if result["ok"] else 1)


def report(result: dict[str, Any], keep: Path | None, options: str = "") -> str:
    """The end of the demo in words: what was learned, where the time went, what to type next.

    `options`: those that choose the engines which a kept folder is for.
    """
    rollouts = result["rollouts"]
    heldout = result["heldout"]
    lines = [
        "",
        f"reward    {_arrow(result['reward_first10'], result['reward_last10'])}  (first and last steps of training)",
        f"held out  {_arrow(heldout['before'], heldout['after'])}  (prompts never trained on)",
        f"rollouts  {rollouts['requested']:,} requested = {rollouts['trained']:,} trained + "
        f"{rollouts['dropped']:,} dropped + {rollouts['failed']:,} failed + {rollouts['cancelled']:,} cancelled + "
        f"{rollouts['in_flight']:,} in flight",
        f"log       {result['spans']:,} spans, {result['triplets']:,} triplets, "
        f"{result['resource_versions']} versions of the model",
    ]
    if result["max_logprob_diff"] is not None:
        lines.append(f"served and trained logprobs agree to {result['max_logprob_diff']:.1e}")
    lines += ["", f"where the time went ({human_seconds(result['wall_seconds'])} in all)"]
    lines.append(
        table(["phase", "seconds"], [[name, f"{seconds:.1f}"] for name, seconds in result["phases_seconds"].items()])
    )
    if result["step_seconds"]:
        of_steps = ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in result["step_seconds"].items())
        lines.append(f"  in the steps themselves: {of_steps}")
    by_cpu = sorted(result["cpu_seconds"].items(), key=lambda item: -item[1])
    lines.append(
        table(
            ["process", "CPU seconds", "most MiB", "restarts"],
            [
                [name, f"{cpu:.1f}", f"{result['max_rss_mib'][name]:.0f}", result["restarts"].get(name, 0)]
                for name, cpu in by_cpu
            ],
        )
    )
    lines += ["", *(f"PROBLEM: {problem}" for problem in result["problems"])]
    lines += ["what to type next"]
    if keep is not None:
        lines.append(f"  agl-stream up --dir {keep}{options}    look around in what the demo left: show, tail, status")
    else:
        lines.append("  agl-stream demo --keep demo-data   the same, and keep the folder with the log")
    lines += [
        "  agl-stream up                      start the system for agents of your own",
        "  examples/01_tool_agent/README.md   the agent that was trained here",
    ]
    return "\n".join(lines)


def _arrow(before: float | None, after: float | None) -> str:
    return f"{_number(before)} -> {_number(after)}"


def _number(value: float | None) -> str:
    return "  -  " if value is None else f"{value:.3f}"
