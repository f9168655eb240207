"""What the demo runs: the processes, their arguments and files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from agl_stream.local.system import LocalSystem
from agl_stream.supervise import ProcessSpec

SERVED_NAME = "policy"
SAMPLING = {"temperature": 1.0, "max_tokens": 4}
AGENT = "agl_stream.demo.agent:calculator_agent"


@dataclass(frozen=True)
class DemoPlan:
    """A run of `steps` training steps of `prompts` prompts with `samples` rollouts each.

    `run_id` also names the learner and the resources it trains: a second run in a kept folder, whose log and
    checkpoints still hold the first, is another learner of another model.
    """

    steps: int = 60
    prompts: int = 16
    samples: int = 8
    seed: int = 0
    runners: int = 1
    runner_slots: int = 64
    run_id: str = field(default_factory=lambda: f"demo-{os.urandom(3).hex()}")


@dataclass(frozen=True)
class DemoFiles:
    """Inputs of the run, below the data folder."""

    model: Path
    tasks: Path
    heldout: Path


def prepare_files(plan: DemoPlan, folder: Path) -> DemoFiles:
    """The shipped model, and the tasks written below `folder`."""
    from agl_stream.trainer.sums import write_tasks
    from agl_stream.trainer.tiny import shipped_model

    tasks, heldout = write_tasks(folder / "tasks" / plan.run_id, plan.seed)
    return DemoFiles(shipped_model(), tasks, heldout)


def serve_spec(system: LocalSystem, plan: DemoPlan, files: DemoFiles, port: int) -> ProcessSpec:
    return system.spec(
        "serve",
        "serve",
        *("--model", str(files.model), "--port", str(port), "--resources-id", plan.run_id),
        *("--served-model-name", SERVED_NAME, "--worker-id", "server-demo"),
        ready_timeout_seconds=120,
    )


def runner_specs(system: LocalSystem, plan: DemoPlan) -> list[ProcessSpec]:
    """Each runner keeps its name over restarts, which makes it the same member of the group."""
    return [
        system.spec(
            f"runner-{number}",
            "runner",
            AGENT,
            *("--slots", str(plan.runner_slots), "--name", f"runner-demo-{number}"),
            stop_timeout_seconds=15,
        )
        for number in range(1, plan.runners + 1)
    ]


def trainer_spec(system: LocalSystem, plan: DemoPlan, files: DemoFiles) -> ProcessSpec:
    """The trainer asks for its own rollouts, tries the held-out prompts first and last, and ends after its steps."""
    return system.spec(
        "trainer",
        "trainer",
        *("--model", str(files.model), "--tasks", str(files.tasks), "--val-tasks", str(files.heldout)),
        *("--steps", str(plan.steps), "--groups-per-step", str(plan.prompts), "--group-size", str(plan.samples)),
        *("--learner-id", plan.run_id, "--resources-id", plan.run_id, "--served-model-name", SERVED_NAME),
        *("--sampling", json.dumps(SAMPLING), "--seed", str(plan.seed)),
        ends=True,
        ready_timeout_seconds=120,
        stop_timeout_seconds=20,
    )
