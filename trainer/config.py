"""What a learner is told: one dataclass, without torch, shared by command line, tests and docs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LearnerConfig:
    """A learner's settings; times in seconds.

    With ``tasks_file`` the learner asks for its own rollouts: ``groups_per_step`` prompts of ``group_size`` siblings a
    step, the next step's after the new version is served. Without, it trains on whatever groups arrive. ``steps``
    None: until stopped. ``validate_every`` 0: validation only at start and end (with ``validation_file``).

    ``group_deadline_seconds`` with ``min_siblings``: a group closes without its last siblings. ``ack_timeout_seconds``:
    how long a new version may go unacknowledged by a server; ``need_server`` False goes on without.
    ``logprob_limit``: largest distance between served and trained logprobs on the fixed prompt.
    """

    model_dir: Path
    learner_id: str = "learner"
    run_id: str = "learner"
    resources_id: str = "policy"
    served_name: str = "policy"
    sampling: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    groups_per_step: int = 16
    group_size: int = 8
    seed: int = 0

    tasks_file: Path | None = None
    validation_file: Path | None = None
    validate_every: int = 0
    max_attempts: int = 3
    attempt_timeout_seconds: float | None = 60.0
    attempt_unresponsive_seconds: float | None = 30.0
    from_latest: bool = False

    group_deadline_seconds: float | None = None
    min_siblings: int = 2
    max_staleness: int | None = None
    max_prompt_tokens: int = 4096
    max_response_tokens: int = 4096
    advantage_by_std: bool = True

    need_server: bool = True
    ack_timeout_seconds: float = 120.0
    check_prompt: str = "1+2="
    logprob_limit: float = 1e-3
    keep_versions: int = 3
    keep_checkpoints: int = 2
    report_seconds: float = 10.0

    def fixed(self) -> dict[str, Any]:
        """What may not change when a learner goes on from its checkpoint."""
        return {
            "run_id": self.run_id,
            "resources_id": self.resources_id,
            "own_tasks": self.tasks_file is not None,
            "groups_per_step": self.groups_per_step,
            "group_size": self.group_size,
            "seed": self.seed,
        }
