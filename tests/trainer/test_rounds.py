"""Rounds of a step: what cannot be trained is settled with what can."""

from __future__ import annotations

from typing import Any

import pytest
from trainer_makers import group, joined

from agl_stream.trainer import rounds
from agl_stream.trainer.batch import Batch, BatchConfig, build_batch
from agl_stream.trainer.rounds import NothingToTrain, gather
from agl_stream.trainer.window import ClosedGroup


def closed(*members: dict[str, Any]) -> ClosedGroup:
    return ClosedGroup(f"group:{members[0]['rollout_id']}", members, len(members), "complete")


def judge(groups: list[ClosedGroup]) -> Batch:
    return build_batch(groups, [], lambda rewards, _: list(rewards), BatchConfig(), version_in=1)


def failed(name: str) -> ClosedGroup:
    return closed(*(joined(f"{name}-{i}", status="failed", reason_code="agent_error", reward=None) for i in range(2)))


def test_the_outcomes_of_all_rounds_come_with_the_first_that_has_rows() -> None:
    asked: list[int] = []

    def collect(number: int) -> list[ClosedGroup]:
        asked.append(number)
        return [failed(f"f{number}")] if number < 3 else [closed(*group("g", 2))]

    batch, groups = gather(collect, judge, "step 1")
    assert asked == [0, 1, 2, 3]
    assert len(groups) == 4
    assert batch.counts == {"failed": 6, "reason:agent_error": 6, "trained": 2}
    assert [row.rollout_id for row in batch.rows] == ["g-0", "g-1"]


def test_the_rounds_are_bounded_by_what_a_manifest_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_SETTLED", 5)
    with pytest.raises(NothingToTrain, match=r"6 rollouts of 3 groups .*agent_error 6.*--learner-id"):
        gather(lambda number: [failed(f"f{number}")], judge, "step 1")
