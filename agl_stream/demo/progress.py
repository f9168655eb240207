"""Adds up what the log says of a run: steps, rewards, tool use, rates. Pure."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

_RECENT_ROLLOUTS = 256
_RATE_WINDOW_SECONDS = 10.0


@dataclass(frozen=True)
class Step:
    """One training step as its manifest tells it. `reward` is the mean over the rollouts that have one."""

    number: int
    reward: float
    trained: int
    rows: int
    version_out: int
    metrics: dict[str, float]


class Rate:
    """Events a second over the last seconds, from a growing count."""

    def __init__(self, window_seconds: float = _RATE_WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._points: deque[tuple[float, int]] = deque()

    def observe(self, now: float, count: int) -> None:
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > self._window:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        if len(self._points) < 2:
            return 0.0
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if end > start else 0.0


@dataclass
class Progress:
    """The state of a run. Repeated events change nothing: each step and each rollout counts once.

    `run_id` keeps other runs of the same data folder out.
    """

    run_id: str
    steps: dict[int, Step] = field(default_factory=dict[int, Step])
    manifests: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    conflicting_steps: set[int] = field(default_factory=set[int])
    ended_rollouts: set[str] = field(default_factory=set[str])
    triplets: int = 0
    heldout: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    _used_tool: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT_ROLLOUTS))

    def batch(self, manifest: dict[str, Any]) -> Step | None:
        """Take a BatchTrained event; returns the step when it is new."""
        if manifest["run_id"] != self.run_id:
            return None
        number = manifest["step"]
        known = self.manifests.get(number)
        if known is not None:
            if known["manifest_hash"] != manifest["manifest_hash"]:
                self.conflicting_steps.add(number)
            return None
        self.manifests[number] = manifest
        rewards = [r["reward"] for r in manifest["rollouts"] if r["reward"] is not None]
        step = Step(
            number=number,
            reward=sum(rewards) / len(rewards) if rewards else 0.0,
            trained=sum(1 for r in manifest["rollouts"] if r["outcome"] == "trained"),
            rows=manifest["rows"],
            version_out=manifest["version_out"],
            metrics={n: v for n, v in json.loads(manifest["metrics"]).items() if isinstance(v, int | float)},
        )
        self.steps[number] = step
        return step

    def joined(self, event: dict[str, Any]) -> None:
        """Take a TripletsJoined event; a later revision of a rollout does not count again."""
        if event["run_id"] != self.run_id or event["rollout_id"] in self.ended_rollouts:
            return
        self.ended_rollouts.add(event["rollout_id"])
        self.triplets += len(event["triplets"])
        if event["mode"] == "val":
            # Without a reward a held-out prompt is not solved: leaving it out would flatter the model.
            self.heldout.setdefault(event["resources_version"] or 0, []).append(event["reward"] or 0.0)
        elif event["triplets"]:
            self._used_tool.append(len(event["triplets"]) > 1)

    @property
    def last_step(self) -> Step | None:
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def tool_use(self) -> float | None:
        """Part of the recent rollouts that called the tool, which makes a second model call of them."""
        return sum(self._used_tool) / len(self._used_tool) if self._used_tool else None

    def heldout_rewards(self) -> tuple[float | None, float | None]:
        """Mean reward on the held-out prompts by the first and by the last version that was asked."""
        if not self.heldout:
            return None, None
        first, last = self.heldout[min(self.heldout)], self.heldout[max(self.heldout)]
        return sum(first) / len(first), sum(last) / len(last)

    def rewards(self) -> list[float]:
        """Mean reward of each step, in order of the steps."""
        return [self.steps[number].reward for number in sorted(self.steps)]


def mean_of_first_and_last(rewards: list[float], most: int = 10) -> tuple[float | None, float | None]:
    """Means of the first and of the last `most` rewards, or of the two halves of a shorter run.

    (None, None) with fewer than two rewards: there is no development in one number.
    """
    count = min(most, len(rewards) // 2)
    if count == 0:
        return None, None
    return sum(rewards[:count]) / count, sum(rewards[-count:]) / count
