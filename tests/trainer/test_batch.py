"""What is trained, with which weight, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_makers import group, joined, triplet

from agl_stream.schemas.reasons import REASONS
from agl_stream.trainer.batch import Batch, BatchConfig, build_batch
from agl_stream.trainer.window import ClosedGroup, Event


def centred(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Reward minus the group's mean."""
    means = {g: [r for r, h in zip(rewards, groups, strict=True) if h == g] for g in groups}
    return [r - sum(means[g]) / len(means[g]) for r, g in zip(rewards, groups, strict=True)]


def build(*groups: list[Event], late: list[Event] | None = None, version_in: int = 1, **limits: Any) -> Batch:
    closed = [ClosedGroup(f"group:{i}", tuple(members), len(members), "complete") for i, members in enumerate(groups)]
    return build_batch(closed, late or [], centred, BatchConfig(**limits), version_in=version_in)


def outcome_of(batch: Batch, rollout_id: str) -> tuple[str, str | None, int]:
    (found,) = [o for o in batch.outcomes if o["rollout_id"] == rollout_id]
    return found["outcome"], found["reason_code"], found["rows"]


def test_advantage_is_per_rollout_and_spread_over_its_rows() -> None:
    two_turns = joined("g-1", reward=1.0, triplets=[triplet([5], [6, 1]), triplet([5, 6, 7], [8, 9, 1, 1, 1, 1])])
    batch = build([joined("g-0", reward=0.0), two_turns])
    assert [(row.rollout_id, row.advantage) for row in batch.rows] == [("g-0", -0.5), ("g-1", 0.5), ("g-1", 0.5)]
    assert batch.rows[2].prompt_ids == [5, 6, 7]
    assert batch.rows[2].response_ids == [8, 9, 1, 1, 1, 1]
    assert outcome_of(batch, "g-1") == ("trained", None, 2)


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_every_rollout_weighs_the_same_however_many_turns_it_has(lengths: list[list[int]]) -> None:
    """Sum over a rollout's rows of weight x mean over tokens = its token mean, under a mean over rows."""
    members = [
        joined(f"g-{i}", reward=float(i), triplets=[triplet([5], [7] * length) for length in turns])
        for i, turns in enumerate(lengths)
    ]
    batch = build(members)
    rows_total = len(batch.rows)
    for member, turns in zip(members, lengths, strict=True):
        rows = [row for row in batch.rows if row.rollout_id == member["rollout_id"]]
        assert sum(row.weight for row in rows) / rows_total == pytest.approx(1 / len(lengths))
        for row, length in zip(rows, turns, strict=True):
            assert row.weight / rows_total == pytest.approx(length / sum(turns) / len(lengths))


def test_each_reason_is_named_and_known_to_the_catalogue() -> None:
    bad: dict[str, Event] = {
        "no_reward": joined("no_reward", reward=None),
        "bad_reward": joined("bad_reward", reward=float("nan")),
        "no_model_calls": joined("no_model_calls", triplets=[]),
        "ids_missing": joined("ids_missing", triplets=[], reason_code="ids_missing"),
        "over_long": joined("over_long", triplets=[triplet([5] * 11, [6])]),
        "nan_logprob": joined("nan_logprob", triplets=[triplet([5], [6], [float("nan")])]),
        "bad_tokens": joined("bad_tokens", triplets=[triplet([5], [6, 7], [-1.0])]),
        "stale": joined("stale", triplets=[triplet([5], [6], [-1.0], version=2)]),
        "logprobs_missing": joined("logprobs_missing", triplets=[triplet([5], [6], None, version=4)]),
    }
    batch = build(
        [*group("g", 2), *bad.values()], version_in=5, max_prompt_tokens=10, max_staleness=2, max_response_tokens=10
    )
    for reason in bad:
        assert outcome_of(batch, reason) == ("dropped", reason, 0)
        assert reason in REASONS
    assert batch.counts["dropped"] == len(bad)
    assert {row.rollout_id for row in batch.rows} == {"g-0", "g-1"}


def test_failed_and_cancelled_rollouts_are_counted_and_never_trained_nor_part_of_the_baseline() -> None:
    members = [
        joined("a", reward=1.0),
        joined("b", reward=0.5),
        joined("c", reward=0.0, status="failed", reason_code="agent_error"),
        joined("d", reward=0.0, status="cancelled", reason_code=None),
    ]
    batch = build(members)
    assert outcome_of(batch, "c") == ("failed", "agent_error", 0)
    assert outcome_of(batch, "d") == ("cancelled", "cancelled", 0)
    assert [row.advantage for row in batch.rows] == [0.25, -0.25]
    assert batch.rewards == [1.0, 0.5]


def test_a_missing_reward_is_not_a_zero() -> None:
    batch = build([joined("a", reward=1.0), joined("b", reward=1.0), joined("c", reward=None)])
    assert [row.advantage for row in batch.rows] == [0.0, 0.0]


def test_one_usable_sibling_has_no_baseline_and_is_dropped() -> None:
    lonely = [joined("a"), joined("b", status="failed", reason_code="worker_lost")]
    batch = build(lonely, group("g", 2))
    assert outcome_of(batch, "a") == ("dropped", "group_incomplete", 0)
    assert outcome_of(batch, "b") == ("failed", "worker_lost", 0)


def test_a_group_of_one_is_trained() -> None:
    assert outcome_of(build([joined("alone")]), "alone") == ("trained", None, 1)


def test_evicted_groups_are_settled_and_not_trained() -> None:
    evicted = ClosedGroup("group:e", tuple(group("e", 4)[:2]), 4, "evicted")
    fine = ClosedGroup("group:g", tuple(group("g", 2)), 2, "complete")
    batch = build_batch([evicted, fine], [], centred, BatchConfig(), version_in=1)
    assert outcome_of(batch, "e-0") == ("dropped", "group_incomplete", 0)


def test_late_siblings_are_settled_as_dropped() -> None:
    batch = build(group("g", 2), late=[joined("late"), joined("dead", status="failed")])
    assert outcome_of(batch, "late") == ("dropped", "late_triplets", 0)
    assert outcome_of(batch, "dead") == ("failed", "late_triplets", 0)


def test_nothing_to_train_leaves_the_outcomes() -> None:
    members = [joined("a", reward=None), joined("b", reward=None), joined("c", status="failed", reason_code=None)]
    batch = build(members, late=[joined("late")])
    assert batch.rows == []
    assert batch.counts == {"dropped": 3, "failed": 1, "reason:no_reward": 2, "reason:failed": 1} | {
        "reason:late_triplets": 1
    }


def test_responses_of_an_older_version_keep_their_logprobs_and_version() -> None:
    old = joined("a", triplets=[triplet([5], [6, 7], [-1.0, -2.0], version=3)])
    batch = build([old, joined("b", reward=0.0)], version_in=4, max_staleness=1)
    assert batch.rows[0].version == 3
    assert batch.rows[0].logprobs == [-1.0, -2.0]


def test_a_response_without_a_version_has_the_one_pinned_on_its_rollout() -> None:
    rows = [triplet([5], [6, 7], [-1.0, -2.0])]
    members = [
        joined("old", triplets=rows, resources_version=1),
        joined("fresh", triplets=rows, resources_version=4),
        joined("stamped", triplets=[triplet([5], [6], [-1.0], version=4)], resources_version=1),
        joined("unknown", triplets=rows),
        joined("bare", triplets=[triplet([5], [6])], resources_version=4),
    ]
    batch = build(members, version_in=5, max_staleness=2)
    assert outcome_of(batch, "old") == ("dropped", "stale", 0)
    assert outcome_of(batch, "bare") == ("dropped", "logprobs_missing", 0)
    assert {row.rollout_id: row.version for row in batch.rows} == {"fresh": 4, "stamped": 4, "unknown": None}
