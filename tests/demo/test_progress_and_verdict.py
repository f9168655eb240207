"""Adding up a run and judging it: repeated events count once, and every fault is a problem."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.demo.progress import Progress, Rate, mean_of_first_and_last
from agl_stream.demo.verdict import Figures, summary
from agl_stream.demo.view import Snapshot, as_line, as_panel, sparkline

RUN = "run"


def manifest(step: int, rewards: list[float | None], **changes: Any) -> dict[str, Any]:
    rollouts = [
        {"rollout_id": f"ro-{step}-{i}", "outcome": "trained" if r is not None else "failed", "reward": r}
        for i, r in enumerate(rewards)
    ]
    base = {
        "run_id": RUN,
        "step": step,
        "rollouts": rollouts,
        "rows": 2 * len(rewards),
        "version_out": step + 1,
        "manifest_hash": f"hash-{step}",
        "metrics": json.dumps({"max_logprob_diff": 1e-6 * step, "train_seconds": 0.5}),
    }
    return {**base, **changes}


def joined(rollout_id: str, triplets: int, **changes: Any) -> dict[str, Any]:
    base = {
        "run_id": RUN,
        "rollout_id": rollout_id,
        "mode": "train",
        "triplets": [{}] * triplets,
        "reward": 1.0,
        "resources_version": 1,
    }
    return {**base, **changes}


def account(**changes: Any) -> dict[str, Any]:
    base = {
        "requested": 20,
        "trained": 20,
        "dropped": {},
        "failed": {},
        "cancelled": 0,
        "in_flight": 0,
        "trained_twice": [],
        "unrequested": [],
        "balanced": True,
    }
    return {**base, **changes}


def good_run() -> Progress:
    progress = Progress(RUN)
    for step in range(1, 21):
        progress.batch(manifest(step, [step / 20.0] * 4))
    return progress


FIGURES = Figures(
    steps_wanted=20, account=account(), spans=100, resource_versions=21, wall_seconds=60, training_seconds=50
)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_and_repetition_of_the_events_gives_the_same_sums(steps: list[int], shuffler: random.Random) -> None:
    events = [manifest(step, [step / 8.0, None]) for step in steps]
    rollouts = [joined(f"ro-{step}", step % 3) for step in steps]
    first, second = Progress(RUN), Progress(RUN)
    for event in events:
        first.batch(event)
    for event in rollouts:
        first.joined(event)
    shuffler.shuffle(events)
    shuffler.shuffle(rollouts)
    for event in [*events, *events]:
        second.batch(event)
    for event in [*rollouts, *rollouts]:
        second.joined(event)
    assert first.rewards() == second.rewards() == [step / 8.0 for step in sorted(set(steps))]
    assert first.triplets == second.triplets == sum(step % 3 for step in set(steps))
    assert first.ended_rollouts == second.ended_rollouts
    assert not second.conflicting_steps


def test_events_of_other_runs_are_left_out() -> None:
    progress = Progress(RUN)
    progress.batch(manifest(1, [1.0], run_id="other"))
    progress.joined(joined("ro-1", 2, run_id="other"))
    assert not progress.steps and not progress.ended_rollouts


def test_tool_use_is_the_part_of_training_rollouts_with_a_second_call() -> None:
    progress = Progress(RUN)
    for number, calls in enumerate([1, 2, 2, 2, 0]):
        progress.joined(joined(f"ro-{number}", calls))
    progress.joined(joined("ro-val", 1, mode="val"))
    assert progress.tool_use == 0.75


def test_heldout_rewards_by_first_and_last_version_missing_ones_count_zero() -> None:
    progress = Progress(RUN)
    for number, (version, reward) in enumerate([(1, 0.0), (1, 1.0), (30, 1.0), (61, 1.0), (61, None)]):
        progress.joined(joined(f"ro-{number}", 1, mode="val", resources_version=version, reward=reward))
    assert progress.heldout_rewards() == (0.5, 0.5)


@given(st.lists(st.floats(0, 1), max_size=70))
def test_first_and_last_never_overlap(rewards: list[float]) -> None:
    first, last = mean_of_first_and_last(rewards)
    if len(rewards) < 2:
        assert first is last is None
    else:
        count = min(10, len(rewards) // 2)
        assert first == pytest.approx(sum(rewards[:count]) / count)
        assert last == pytest.approx(sum(rewards[len(rewards) - count :]) / count)


def test_a_good_run_has_no_problems() -> None:
    found = summary(good_run(), FIGURES)
    assert found["ok"] and found["problems"] == []
    assert found["steps"] == 20
    assert found["reward_first10"] == pytest.approx(0.275) and found["reward_last10"] == pytest.approx(0.775)
    assert found["step_seconds"] == {"train": 10.0}
    assert found["max_logprob_diff"] == pytest.approx(2e-5)
    assert sum(v for k, v in found["rollouts"].items() if k != "requested") == found["rollouts"]["requested"] == 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_wanted": 21}, "1 of 21 steps were not trained: [21]"),
        ({"account": account(requested=21)}, "does not balance: 21 requested, 20 accounted for"),
        ({"account": account(balanced=False, trained_twice=["ro-1"])}, "1 trained twice"),
        ({"account": account(balanced=False, unrequested=["ro-9"])}, "1 never requested"),
        ({"account": account(trained=19, in_flight=1)}, "1 rollouts are still in flight"),
    ],
)
def test_each_fault_of_the_account_is_a_problem(changes: dict[str, Any], words: str) -> None:
    found = summary(good_run(), replace(FIGURES, **changes))
    assert not found["ok"]
    assert any(words in problem for problem in found["problems"]), found["problems"]


def test_dropped_and_failed_are_counted_with_their_reasons() -> None:
    told = account(trained=14, dropped={"no_reward": 2, "stale": 1}, failed={"agent_error": 2}, cancelled=1)
    found = summary(good_run(), replace(FIGURES, account=told))
    assert found["ok"]
    assert (found["rollouts"]["dropped"], found["rollouts"]["failed"]) == (3, 2)
    assert found["reasons"]["dropped"] == {"no_reward": 2, "stale": 1}


def test_a_reward_that_does_not_rise_is_a_problem() -> None:
    progress = Progress(RUN)
    for step in range(1, 21):
        progress.batch(manifest(step, [0.5]))
    assert "the reward did not rise" in summary(progress, FIGURES)["problems"][0]


def test_a_step_trained_again_with_other_data_is_a_problem() -> None:
    progress = good_run()
    progress.batch(manifest(3, [0.1], manifest_hash="another"))
    assert "steps trained twice with different data: [3]" in summary(progress, FIGURES)["problems"]


def test_logprobs_that_differ_are_a_problem() -> None:
    progress = good_run()
    progress.batch(manifest(21, [1.0], metrics=json.dumps({"max_logprob_diff": 0.01})))
    assert any("logprobs differ by up to 0.01" in p for p in summary(progress, FIGURES)["problems"])


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(window_seconds=10)
    assert rate.per_second == 0.0
    for second in range(100):
        rate.observe(float(second), 5 * second if second < 50 else 250)
    assert rate.per_second == 0.0
    rate.observe(101.0, 370)
    assert rate.per_second == pytest.approx(120 / 10, rel=0.2)


def test_the_view_can_draw_the_first_moment_and_a_late_one() -> None:
    from rich.console import Console

    late = Snapshot("training", 30, 60, [0.1, 0.5, 0.9], 0.8, 4000, 51.2, 9000, 120.0, {"agl.sink": 3})
    console = Console(width=100, record=True, file=io.StringIO())
    for snapshot in (Snapshot("starting", 0, 60), late):
        console.print(as_panel(snapshot))
    assert "30/60" in console.export_text()
    assert as_line(Snapshot("starting", 0, 60)) == "[starting]"
    assert as_line(late) == (
        "[training]  step 30/60  reward 0.50  tool use 80%  4,000 rollouts (51/s)  9,000 spans (120/s)  lag 3"
    )


@given(st.lists(st.floats(-1, 2), max_size=200), st.integers(1, 40))
def test_a_sparkline_fits_its_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(width, len(values))
