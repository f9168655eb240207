"""Which prompts a step asks for: the same ones for the same seed, on every restart.

Each epoch visits every task once, in an order shuffled by seed and epoch. Ids of rollouts and groups follow from
run, step, prompt and sample, so asking again after a crash asks for the same rollouts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_stream.errors import UsageError
from agl_stream.producers.task import TaskError, request_of, task_of_line
from agl_stream.schemas.ids import derived, derived_rollout_id

Task = dict[str, Any]


def read_tasks(path: str | Path) -> list[Task]:
    """The tasks of a JSON Lines file; UsageError names file, line and reason of the first bad one."""
    tasks: list[Task] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = task_of_line(json.loads(line))
            request_of(**task)
        except (ValueError, RecursionError, TaskError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
        tasks.append(task)
    if not tasks:
        raise UsageError(f"{path} holds no task; write one JSON value a line")
    return tasks


@dataclass(frozen=True)
class Curriculum:
    """The requests of a run. ``config`` holds limits and retries for tasks that do not say their own."""

    run_id: str
    tasks: Sequence[Task]
    groups_per_step: int
    group_size: int
    seed: int
    config: dict[str, Any]

    def chosen(self, step: int) -> list[int]:
        """Indices of the tasks of ``step`` (from 1)."""
        first = (step - 1) * self.groups_per_step
        orders: dict[int, list[int]] = {}
        indices: list[int] = []
        for position in range(first, first + self.groups_per_step):
            epoch, place = divmod(position, len(self.tasks))
            if epoch not in orders:
                orders[epoch] = list(range(len(self.tasks)))
                random.Random(f"{self.seed}:{epoch}").shuffle(orders[epoch])
            indices.append(orders[epoch][place])
        return indices

    def requests(self, step: int, resources_id: str, version: int, *, round_number: int = 0) -> list[Task]:
        """What ``step`` asks for: groups_per_step x group_size tasks, pinned to a resources version.

        A step that found nothing to train asks again: round 1 takes the prompts of the step that follows, and so on,
        as rollouts of their own; that step asks for them, too.
        """
        requests: list[Task] = []
        first = round_number * self.groups_per_step
        for place, index in enumerate(self.chosen(step + round_number), start=first):
            task = self.tasks[index]
            for sample in range(self.group_size):
                requests.append(
                    {
                        **task,
                        "config": {**self.config, **(task.get("config") or {})},
                        "rollout_id": derived_rollout_id(self.run_id, step, place, sample),
                        "group_id": "gr-" + derived(16, "group", self.run_id, step, place),
                        "group_size": self.group_size,
                        "run_id": self.run_id,
                        "mode": "train",
                        "resources_id": resources_id,
                        "resources_version": version,
                    }
                )
        return requests


def validation_requests(
    run_id: str, step: int, tasks: Sequence[Task], config: dict[str, Any], resources_id: str, version: int
) -> list[Task]:
    """One rollout for each validation task, in mode val; never trained."""
    return [
        {
            **task,
            "config": {**config, **(task.get("config") or {})},
            "rollout_id": derived_rollout_id(run_id, "val", step, place),
            "group_id": None,
            "group_size": None,
            "run_id": run_id,
            "mode": "val",
            "resources_id": resources_id,
            "resources_version": version,
        }
        for place, task in enumerate(tasks)
    ]
