"""What came of a run, as one JSON object, and whether that is good. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agl_stream.demo.progress import Progress, mean_of_first_and_last

LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Figures:
    """What was measured beside the log: see `summary` for the meaning of each."""

    steps_wanted: int
    account: Mapping[str, Any]
    spans: int
    resource_versions: int
    wall_seconds: float
    training_seconds: float
    phases_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    cpu_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    max_rss_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    restarts: Mapping[str, int] = field(default_factory=dict[str, int])


def summary(progress: Progress, figures: Figures) -> dict[str, Any]:
    """The object that `demo --output json` prints.

    `rollouts` is the account of training rollouts: every one that was requested is trained, dropped, failed,
    cancelled or still in flight. `problems` is empty exactly when `ok` is true.
    """
    first, last = mean_of_first_and_last(progress.rewards())
    before, after = progress.heldout_rewards()
    account = figures.account
    difference = _greatest(progress, "max_logprob_diff", "served_logprob_diff")
    problems = find_problems(progress, figures, first, last, difference)
    return {
        "ok": not problems,
        "problems": problems,
        "steps": len(progress.steps),
        "reward_first10": _rounded(first),
        "reward_last10": _rounded(last),
        "rewards": [round(reward, 4) for reward in progress.rewards()],
        "tool_use": _rounded(progress.tool_use),
        "heldout": {"before": _rounded(before), "after": _rounded(after)},
        "rollouts": {
            "requested": account["requested"],
            "trained": account["trained"],
            "dropped": sum(account["dropped"].values()),
            "failed": sum(account["failed"].values()),
            "cancelled": account["cancelled"],
            "in_flight": account["in_flight"],
        },
        "reasons": {"dropped": dict(account["dropped"]), "failed": dict(account["failed"])},
        "spans": figures.spans,
        "triplets": progress.triplets,
        "resource_versions": figures.resource_versions,
        "max_logprob_diff": difference,
        "wall_seconds": round(figures.wall_seconds, 2),
        "training_seconds": round(figures.training_seconds, 2),
        "phases_seconds": {name: round(seconds, 2) for name, seconds in figures.phases_seconds.items()},
        "step_seconds": _step_seconds(progress),
        "cpu_seconds": {name: round(seconds, 2) for name, seconds in figures.cpu_seconds.items()},
        "max_rss_mib": {name: round(count / 2**20, 1) for name, count in figures.max_rss_bytes.items()},
        "restarts": dict(figures.restarts),
    }


def find_problems(
    progress: Progress, figures: Figures, first: float | None, last: float | None, difference: float | None
) -> list[str]:
    """Everything that makes a run a failure, in words; empty for a good one."""
    problems: list[str] = []
    account = figures.account
    if missing := sorted(set(range(1, figures.steps_wanted + 1)) - set(progress.steps)):
        problems.append(f"{len(missing)} of {figures.steps_wanted} steps were not trained: {missing[:5]}")
    if progress.conflicting_steps:
        problems.append(f"steps trained twice with different data: {sorted(progress.conflicting_steps)}")
    settled = (
        account["trained"]
        + sum(account["dropped"].values())
        + sum(account["failed"].values())
        + account["cancelled"]
        + account["in_flight"]
    )
    if not account["balanced"] or settled != account["requested"]:
        problems.append(
            f"the account does not balance: {account['requested']} requested, {settled} accounted for, "
            f"{len(account['trained_twice'])} trained twice, {len(account.get('unrequested', ()))} never requested"
        )
    if account["in_flight"]:
        problems.append(f"{account['in_flight']} rollouts are still in flight after the last step")
    if first is None or last is None:
        problems.append("with fewer than two steps there is no reward to compare")
    elif last <= first:
        problems.append(f"the reward did not rise: {first:.3f} in the first steps, {last:.3f} in the last")
    if difference is not None and difference > LOGPROB_TOLERANCE:
        problems.append(f"served and trained logprobs differ by up to {difference:.2g}")
    return problems


def _greatest(progress: Progress, *metrics: str) -> float | None:
    found = (step.metrics[name] for step in progress.steps.values() for name in metrics if name in step.metrics)
    return max(found, default=None)


def _step_seconds(progress: Progress) -> dict[str, float]:
    """Seconds of all steps together by what the learner did: wait for rollouts, train, write and publish."""
    sums: dict[str, float] = {}
    for step in progress.steps.values():
        for name, value in step.metrics.items():
            if name.endswith("_seconds"):
                sums[name.removesuffix("_seconds")] = sums.get(name.removesuffix("_seconds"), 0.0) + value
    return {name: round(seconds, 2) for name, seconds in sums.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
