"""Joined rollouts as they come off the log: training ones into the window, validation ones kept apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from agl_stream.trainer.log_follower import LogFollower
from agl_stream.trainer.window import GroupWindow, rank

Event = dict[str, Any]


class Intake:
    """Routes what a follower of ``triplets`` reads. What belongs to another run or other resources is passed over:
    its token ids may be another model's."""

    def __init__(self, follower: LogFollower, window: GroupWindow, *, run_id: str | None, resources_id: str) -> None:
        """``run_id`` None accepts every run's rollouts."""
        self.window = window
        self.counts: Counter[str] = Counter()
        self._follower = follower
        self._run_id = run_id
        self._resources_id = resources_id
        self._validation: dict[str, Event | None] = {}

    def poll(self, timeout_seconds: float) -> int:
        """Takes in what has come; waits at most ``timeout_seconds`` for the first. Returns the number of records."""
        records = self._follower.poll(timeout_seconds)
        for record in records:
            self._route(record.event)
        return len(records)

    def _route(self, event: Event) -> None:
        if event["rollout_id"] in self._validation:
            known = self._validation[event["rollout_id"]]
            if known is None or rank(known) < rank(event):
                self._validation[event["rollout_id"]] = event
        elif self._run_id is not None and event["run_id"] != self._run_id:
            self.counts["other_run"] += 1
        elif event["resources_id"] not in (None, self._resources_id):
            self.counts["other_resources"] += 1
        elif event["mode"] in ("val", "test"):
            self.counts["not_for_training"] += 1
        else:
            self.window.offer(event)

    def expect_validation(self, rollout_ids: Iterable[str]) -> None:
        """Keep the results of these rollouts, and forget those of earlier ones."""
        self._validation = dict.fromkeys(rollout_ids)

    def awaited_validation(self) -> list[str]:
        """Expected validation rollouts without a result."""
        return [rollout_id for rollout_id, event in self._validation.items() if event is None]

    def validation(self) -> list[Event]:
        """Results of the expected validation rollouts that have reported."""
        return [event for event in self._validation.values() if event is not None]

    def offsets(self) -> list[tuple[str, int, int]]:
        """(topic, partition, next offset) after everything taken in, sorted."""
        return sorted((p.topic, p.number, offset) for p, offset in self._follower.positions.items())
