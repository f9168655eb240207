"""The queries of docs/connect.md, read from there, on rows that came through Connect."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import pytest

from .conftest import NOW_US, Scene, attempt, rollout

pytestmark = pytest.mark.engines

DOCUMENT = Path(__file__).parents[3] / "docs" / "connect.md"
SECOND_US = 1_000_000


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def joined(number: int, calls: int, revision: int = 0) -> dict[str, object]:
    triplet = {
        "prompt_token_ids": array("i", range(10)).tobytes(),
        "response_token_ids": array("i", range(4)).tobytes(),
        "response_logprobs": None,
        "reward": None,
        "resources_version": 1,
        "finish_reason": "stop",
        "metadata": "{}",
    }
    return {
        "rollout_id": f"ro-{number}",
        "attempt_id": f"at-{number}-1",
        "attempt_number": 1,
        "revision": revision,
        "status": "succeeded",
        "triplets": [{"span_id": f"s{call}", "sequence_id": call, **triplet} for call in range(calls)],
        "adapter": "llm_calls",
        "adapter_version": "1",
        "content_hash": "x",
    }


def test_the_documented_queries_answer(scene: Scene) -> None:
    scene.apply("attempts-postgres", "triplets-postgres")
    states = [rollout(n, resources_version=n // 2, attempts=[attempt(n, reward=n / 4)]) for n in range(4)]
    lost = attempt(4, status="failed", reason_code="agent_error", reward=None, worker_id="runner-1")
    late = attempt(4, 2, status="timeout", reason_code=None, reward=None, worker_id="runner-1")
    states.append(rollout(4, status="failed", attempts=[lost, late]))
    states.append(
        rollout(5, resources_version=1, attempts=[attempt(5, reward=0.0, ended_at_us=NOW_US + 3_601 * SECOND_US)])
    )
    scene.produce("rollouts", "RolloutStateChanged", *states)
    scene.produce("triplets", "TripletsJoined", joined(1, 2), joined(1, 3, revision=1), joined(5, 1))
    scene.wait_sql("select count(*) from attempts", "7")
    scene.wait_sql("select count(*) from triplets", "6")
    reward, failures, cost = queries()
    assert scene.sql(reward).splitlines() == [
        "2026-01-01 00:00:00+00|0|2|0.125",
        "2026-01-01 00:00:00+00|1|2|0.625",
        "2026-01-01 01:00:00+00|1|1|0.000",
    ]
    assert scene.sql(failures).splitlines() == [
        "runner-1|timeout|(none)|1|50.0",
        "runner-1|failed|agent_error|1|50.0",
    ]
    assert scene.sql(cost).splitlines() == ["ro-5|1|10|4|3600.000", "ro-1|3|30|12|2.500"]
