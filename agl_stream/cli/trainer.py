"""`agl-stream trainer`: trains on joined triplets and publishes model versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


def _parse_sampling(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise click.BadParameter("must be a JSON object")
    return parsed


@click.command("trainer", short_help="Train on joined triplets and publish model versions.")
@click.option(
    "--model",
    "model_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder with the base model, in Hugging Face layout.",
)
@click.option("--learner-id", default="learner", show_default=True, help="Name of this learner and of its folder.")
@click.option("--run-id", help="Run its rollouts belong to.  [default: the learner id]")
@click.option("--resources-id", default="policy", show_default=True, help="Resources whose versions it publishes.")
@click.option(
    "--served-model-name", "served_name", default="policy", show_default=True, help="The model's name at the server."
)
@click.option(
    "--sampling",
    default="{}",
    show_default=True,
    callback=_parse_sampling,
    help="Sampling parameters that agents are given, a JSON object.",
)
@click.option("--tasks", "tasks_file", type=_File, help="JSON Lines of tasks to ask for.  [default: what arrives]")
@click.option(
    "--val-tasks",
    "--validation",
    "validation_file",
    type=_File,
    help="JSON Lines of tasks that are tried, never trained.",
)
@click.option(
    "--val-every",
    "validate_every",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Validate every so many steps; 0: at start and end only.",
)
@click.option("--steps", type=click.IntRange(min=0), help="Steps to train.  [default: until stopped]")
@click.option(
    "--groups-per-step",
    "--prompts",
    "groups_per_step",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Prompts a step.",
)
@click.option(
    "--group-size",
    "--samples",
    "group_size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Rollouts a prompt.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Order of the tasks, and torch's seed.")
@click.option("--learning-rate", type=click.FloatRange(min=0), default=5e-4, show_default=True, help="AdamW's.")
@click.option("--clip-ratio", type=click.FloatRange(min=0), default=0.2, show_default=True, help="Of the surrogate.")
@click.option(
    "--advantage",
    type=click.Choice(["grpo", "mean-only"]),
    default="grpo",
    show_default=True,
    help="Reward against the group's mean, over its standard deviation or not.",
)
@click.option("--max-attempts", type=click.IntRange(min=1), default=3, show_default=True, help="Attempts a rollout.")
@click.option(
    "--attempt-timeout",
    "attempt_timeout_seconds",
    type=click.FloatRange(min=0.001),
    default=60.0,
    show_default=True,
    help="Longest attempt, seconds.",
)
@click.option(
    "--attempt-unresponsive",
    "attempt_unresponsive_seconds",
    type=click.FloatRange(min=0.001),
    default=30.0,
    show_default=True,
    help="Longest silence of an attempt, seconds.",
)
@click.option(
    "--group-deadline",
    "group_deadline_seconds",
    type=click.FloatRange(min=0.001),
    help="Close a group this long after its first sibling, with at least --min-siblings.  [default: when complete]",
)
@click.option(
    "--min-siblings",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Fewest usable ones of a group.",
)
@click.option(
    "--max-staleness", type=click.IntRange(min=0), help="Versions a response may be behind.  [default: any number]"
)
@click.option("--max-prompt-tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Of a row.")
@click.option("--max-response-tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Of a row.")
@click.option("--from-latest", is_flag=True, help="Without --tasks: leave out the triplets that are there already.")
@click.option(
    "--need-server/--no-server",
    default=True,
    show_default=True,
    help="Whether each version must be acknowledged by a server and its logprobs compared.",
)
@click.option(
    "--ack-timeout",
    "ack_timeout_seconds",
    type=click.FloatRange(min=0.1),
    default=120.0,
    show_default=True,
    help="How long a version may go unacknowledged, seconds.",
)
@click.option("--check-prompt", default="1+2=", show_default=True, help="The fixed prompt of that comparison.")
@click.option(
    "--logprob-limit",
    type=click.FloatRange(min=0),
    default=1e-3,
    show_default=True,
    help="Largest distance between served and trained logprobs.",
)
@click.option("--keep-versions", type=click.IntRange(min=1), default=3, show_default=True, help="Weights kept on disk.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="To train on."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Torch threads on CPU.")
@output_option
def command(
    device: str, threads: int, learning_rate: float, clip_ratio: float, advantage: str, output: str, **options: Any
) -> None:
    """Collect groups of joined rollouts, train a step on each batch, publish the new version, wait until it is served.

    Runs until --steps are done (exit 0), SIGTERM or Ctrl-C. Started again with the same --learner-id it goes on from
    its last checkpoint: each step is trained once.
    """
    import signal
    import threading

    from agl_stream.trainer.config import LearnerConfig

    settings = load_settings()
    run_id = options.pop("run_id") or options["learner_id"]
    config = LearnerConfig(run_id=run_id, advantage_by_std=advantage == "grpo", **options)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    from agl_stream.trainer.learner import Learner
    from agl_stream.trainer.progress import summary
    from agl_stream.trainer.verl_backend import VerlBackend, VerlConfig

    backend = VerlBackend(
        config.model_dir,
        VerlConfig(
            learning_rate=learning_rate, clip_ratio=clip_ratio, device=device, threads=threads, seed=config.seed
        ),
    )

    def on_stage(stage: str, step: int) -> None:
        if stage == "acknowledged" and not announced:
            announced.append(step)
            if output == "json":
                emit_json({"ready": True, "learner_id": config.learner_id, "step": step})
            else:
                click.echo(f"trainer ready, learner {config.learner_id} at step {step}")

    def on_step(record: dict[str, Any]) -> None:
        if output == "text":
            click.echo(_line(record))

    announced: list[int] = []
    state = Learner(settings, config, backend, stop=stop, on_stage=on_stage, on_step=on_step).run()
    result = summary(state)
    if output == "json":
        emit_json(result)
    else:
        click.echo(
            f"trained {result['steps']} steps, version {result['version']}, reward "
            f"{_number(result['reward_first10'])} (first ten) to {_number(result['reward_last10'])} (last ten)"
        )


def _line(record: dict[str, Any]) -> str:
    if "validation" in record:
        validation = record["validation"]
        return f"validation at step {validation['step']}: reward {_number(validation['reward_mean'])}"
    seconds = "  ".join(f"{name} {spent:.2f} s" for name, spent in record["seconds"].items())
    return (
        f"step {record['step']}  reward {record['reward_mean']:.3f}  calls {record['rows_per_rollout']:.2f}  {seconds}"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
