"""Which prompts a step asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.errors import UsageError
from agl_stream.producers.task import request_of
from agl_stream.trainer.curriculum import Curriculum, read_tasks, validation_requests
from agl_stream.trainer.sums import split, write_tasks

TASKS = [{"input": number} for number in range(10)]


def curriculum(**fields: object) -> Curriculum:
    return replace(Curriculum("run", TASKS, 4, 3, 7, {"max_attempts": 3}), **fields)  # type: ignore[arg-type]


def test_the_same_seed_asks_for_the_same_rollouts_and_another_for_others() -> None:
    first = curriculum().requests(5, "policy", 6)
    assert first == curriculum().requests(5, "policy", 6)
    assert [r["input"] for r in first] != [r["input"] for r in curriculum(seed=8).requests(5, "policy", 6)]
    assert {r["rollout_id"] for r in first}.isdisjoint(
        r["rollout_id"] for r in curriculum(run_id="other").requests(5, "policy", 6)
    )


@given(st.integers(1, 6), st.integers(1, 9))
def test_each_epoch_visits_every_task_once(groups_per_step: int, size: int) -> None:
    plan = curriculum(tasks=TASKS[:size], groups_per_step=groups_per_step)
    visited = [index for step in range(1, size + 1) for index in plan.chosen(step)]
    assert Counter(visited) == dict.fromkeys(range(size), groups_per_step)


def test_requests_are_whole_groups_pinned_to_a_version_and_valid() -> None:
    requests = curriculum().requests(2, "policy", 3)
    groups = Counter(request["group_id"] for request in requests)
    assert set(groups.values()) == {3}
    assert len({request["rollout_id"] for request in requests}) == 12
    for request in requests:
        event = request_of(**request)
        assert (event["resources_id"], event["resources_version"], event["mode"]) == ("policy", 3, "train")
        assert (event["group_size"], event["config"]["max_attempts"]) == (3, 3)


def test_a_tasks_own_limits_win() -> None:
    plan = curriculum(tasks=[{"input": 1, "config": {"max_attempts": 1}}], groups_per_step=1, group_size=1)
    assert plan.requests(1, "policy", 1)[0]["config"] == {"max_attempts": 1}


def test_validation_asks_for_single_rollouts_with_ids_of_their_step() -> None:
    at_zero = validation_requests("run", 0, TASKS, {}, "policy", 1)
    at_ten = validation_requests("run", 10, TASKS, {}, "policy", 11)
    assert [r["input"] for r in at_zero] == list(range(10))
    assert {r["mode"] for r in at_zero} == {"val"}
    assert {r["rollout_id"] for r in at_zero}.isdisjoint(r["rollout_id"] for r in at_ten)
    assert all(request_of(**request)["group_id"] is None for request in at_zero)


def test_a_bad_task_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"input": 1}\n\n{"input": 2, "mode": "nonsense"}\n')
    with pytest.raises(UsageError, match=r"tasks\.jsonl, line 3: mode"):
        read_tasks(path)
    path.write_text("[1, 2]\nnot json\n")
    with pytest.raises(UsageError, match="line 2"):
        read_tasks(path)
    path.write_text("\n")
    with pytest.raises(UsageError, match="holds no task"):
        read_tasks(path)
    path.write_text('[1]\n{"a": 1, "b": 2}\n')
    assert read_tasks(path) == [{"input": [1]}, {"input": {"a": 1, "b": 2}}]


def test_the_sums_are_split_once_and_for_all(tmp_path: Path) -> None:
    train, held_out = split(0)
    assert (len(train), len(held_out)) == (84, 16)
    assert {(t["question"], t["answer"]) for t in train + held_out} == {
        (f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)
    }
    paths = write_tasks(tmp_path, 0)
    assert [t["input"] for t in read_tasks(paths[0])] == train
    assert [t["input"] for t in read_tasks(paths[1])] == held_out


def test_a_further_round_of_a_step_asks_for_rollouts_of_its_own_with_the_next_prompts() -> None:
    plan = curriculum()
    asked = [plan.requests(5, "policy", 6, round_number=number) for number in range(3)] + [
        plan.requests(6, "policy", 7)
    ]
    assert len({request["rollout_id"] for requests in asked for request in requests}) == 4 * 12
    assert len({request["group_id"] for requests in asked for request in requests}) == 4 * 4
    assert [r["input"] for r in asked[1]] == [r["input"] for r in asked[3]]
    assert asked[2] == plan.requests(5, "policy", 6, round_number=2)
