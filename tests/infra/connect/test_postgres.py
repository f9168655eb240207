"""Rollouts, attempts and triplets as rows of PostgreSQL: by the ready sinks, our plugin and either registry."""

from __future__ import annotations

import pytest

from .conftest import Scene, attempt, rollout

pytestmark = pytest.mark.engines


def test_a_rollout_is_a_row_and_each_of_its_attempts_one(scene: Scene) -> None:
    scene.apply("rollouts-postgres", "attempts-postgres")
    states = [rollout(n, attempts=[attempt(n), attempt(n, 2)]) for n in range(10)]
    scene.produce("rollouts", "RolloutStateChanged", *states)
    scene.wait_sql("select count(*) from rollouts", "10")
    scene.wait_sql("select count(*), count(distinct rollout_id) from attempts", "20|10")
    columns = "status, input, resources_version, occurred_at, ended_at is null, config_max_attempts"
    assert scene.sql(f"select {columns} from rollouts where rollout_id = 'ro-4'") == (
        'succeeded|{"question": 4}|1|2026-01-01 00:00:00.000004+00|t|1'
    )
    columns = "rollout_id, rollout_version, attempt_number, worker_id, reward, ended_at - started_at"
    assert (
        scene.sql(f"select {columns} from attempts where attempt_id = 'at-4-2'") == "ro-4|1|2|runner-0|0.4|00:00:02.5"
    )
