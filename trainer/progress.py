"""Figures of a step and of a run, for manifests, viewers and the last line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from agl_stream.trainer.batch import Batch
from agl_stream.trainer.checkpoint import LearnerState
from agl_stream.trainer.window import ClosedGroup

FIRST_KEPT = 10
LATEST_KEPT = 490


class Stopwatch:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends the current lap as ``name``."""
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 4), now


def batch_metrics(
    batch: Batch,
    groups: Sequence[ClosedGroup],
    trained: dict[str, float],
    watch: Stopwatch,
    *,
    previous: LearnerState,
    served_diff: float | None,
) -> dict[str, float]:
    """BatchTrained.metrics of a step.

    ``served_logprob_diff`` and ``publish_seconds`` are those of the step before, whose publication is over.
    ``rows_per_rollout`` above one says that agents use more than one model call.
    """
    counts = batch.counts
    metrics: dict[str, float] = {
        "reward_mean": fmean(batch.rewards),
        "reward_std": pstdev(batch.rewards),
        "rollouts": float(len(batch.outcomes)),
        "groups": float(len(groups)),
        "rows": float(len(batch.rows)),
        "rows_per_rollout": len(batch.rows) / len(batch.rewards),
        **{name: float(counts[name]) for name in ("trained", "dropped", "failed", "cancelled")},
        **{f"{name}_seconds": seconds for name, seconds in watch.laps.items()},
        **{name.removeprefix("actor/"): value for name, value in trained.items() if not name.startswith("perf/")},
    }
    if served_diff is not None:
        metrics["served_logprob_diff"] = served_diff
    if previous.history and (laps := previous.history[-1].get("seconds")):
        metrics["publish_seconds"] = laps.get("publish", 0.0)
    return metrics


def validation_record(step: int, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean reward of a validation, over the rollouts that have one; those without are counted, not taken for zero."""
    rewards = [e["reward"] for e in events if e["status"] == "succeeded" and e["reward"] is not None]
    return {
        "step": step,
        "reward_mean": fmean(rewards) if rewards else None,
        "rollouts": len(events),
        "with_reward": len(rewards),
        "rows_per_rollout": fmean(len(e["triplets"]) for e in events) if events else None,
    }


def shortened(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the latest of ``records``: a checkpoint must not grow with the age of its run."""
    surplus = len(records) - FIRST_KEPT - LATEST_KEPT
    return [*records[:FIRST_KEPT], *records[FIRST_KEPT + max(0, surplus) :]]


def add_to_totals(totals: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Totals with one more step: outcomes and reasons counted, seconds summed, the largest logprob distances."""
    outcomes, seconds, largest = (dict(totals.get(name, {})) for name in ("outcomes", "seconds", "largest"))
    for name, count in record["outcomes"].items():
        outcomes[name] = outcomes.get(name, 0) + count
    for name, spent in record["seconds"].items():
        seconds[name] = round(seconds.get(name, 0.0) + spent, 3)
    for name in ("max_logprob_diff", "served_logprob_diff"):
        if name in record:
            largest[name] = max(largest.get(name, 0.0), record[name])
    return {"outcomes": outcomes, "seconds": seconds, "largest": largest}


def summary(state: LearnerState) -> dict[str, Any]:
    """A run as one JSON object."""
    rewards = [record["reward_mean"] for record in state.history]
    outcomes = state.totals.get("outcomes", {})
    reasons = {name.removeprefix("reason:"): n for name, n in outcomes.items() if name.startswith("reason:")}
    largest = state.totals.get("largest", {})
    return {
        "learner_id": state.learner_id,
        "run_id": state.run_id,
        "resources_id": state.resources["resources_id"],
        "steps": state.step,
        "version": state.version,
        "reward_first10": fmean(rewards[:10]) if rewards else None,
        "reward_last10": fmean(rewards[-10:]) if rewards else None,
        "rollouts": {name: outcomes.get(name, 0) for name in ("trained", "dropped", "failed", "cancelled")},
        "reasons": reasons,
        "validation": state.validation,
        "max_logprob_diff": largest.get("max_logprob_diff"),
        "served_logprob_diff": largest.get("served_logprob_diff"),
        "seconds": state.totals.get("seconds", {}),
        "cpu_seconds": round(time.process_time(), 3),
    }
