"""Rollouts, attempts and triplets as rows of PostgreSQL: by the ready sinks, our plugin and either registry."""

from __future__ import annotations

import copy
import io
import json
import struct
from array import array
from collections.abc import Callable

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from agl_stream.infra.servers.apicurio import Apicurio
from agl_stream.schemas import events

from .conftest import NOW_US, Scene, attempt, rollout

pytestmark = pytest.mark.engines


@pytest.fixture(params=["embedded", "apicurio"])
def scene_on(request: pytest.FixtureRequest, make_scene: Callable[[str], Scene], registry_url: str) -> Scene:
    """A scene on the embedded registry, and one on Apicurio's."""
    if request.param == "embedded":
        return make_scene(registry_url)
    apicurio: Apicurio = request.getfixturevalue("apicurio")
    return make_scene(apicurio.ccompat_url)


def test_a_rollout_is_a_row_and_each_of_its_attempts_one(scene_on: Scene) -> None:
    scene_on.apply("rollouts-postgres", "attempts-postgres")
    states = [rollout(n, attempts=[attempt(n), attempt(n, 2)]) for n in range(10)]
    scene_on.produce("rollouts", "RolloutStateChanged", *states)
    scene_on.wait_sql("select count(*) from rollouts", "10")
    scene_on.wait_sql("select count(*), count(distinct rollout_id) from attempts", "20|10")
    columns = "status, input, resources_version, occurred_at, ended_at is null, config_max_attempts"
    assert scene_on.sql(f"select {columns} from rollouts where rollout_id = 'ro-4'") == (
        'succeeded|{"question": 4}|1|2026-01-01 00:00:00.000004+00|t|1'
    )
    columns = "rollout_id, rollout_version, attempt_number, worker_id, reward, ended_at - started_at"
    assert scene_on.sql(f"select {columns} from attempts where attempt_id = 'at-4-2'") == (
        "ro-4|1|2|runner-0|0.4|00:00:02.5"
    )


def test_a_later_state_replaces_the_row_and_a_tombstone_leaves_it(scene: Scene) -> None:
    scene.apply("rollouts-postgres")
    scene.produce("rollouts", "RolloutStateChanged", rollout(1, status="running"), rollout(1, 2, reason_code="no\0pe"))
    scene.produce_raw("rollouts", None, "ro-1")
    scene.produce("rollouts", "RolloutStateChanged", rollout(2))
    scene.wait_sql("select count(*) from rollouts where rollout_id = 'ro-2'", "1")
    # PostgreSQL's text has no NUL; the replacement character stands for it.
    assert scene.sql("select version, status, reason_code from rollouts where rollout_id = 'ro-1'") == (
        "2|succeeded|no\ufffdpe"
    )


def test_an_event_without_a_time_has_that_of_the_log(scene: Scene) -> None:
    scene.apply("rollouts-postgres")
    scene.produce("rollouts", "RolloutStateChanged", rollout(1, occurred_at_us=0))
    scene.wait_sql("select abs(extract(epoch from now() - occurred_at)) < 300 from rollouts", "t")


def test_triplets_are_rows_with_token_counts_and_the_reward_of_their_rollout(scene: Scene) -> None:
    scene.apply("triplets-postgres")
    triplets = [
        {
            "span_id": f"s{n}",
            "sequence_id": n,
            "prompt_token_ids": array("i", range(5 + n)).tobytes(),
            "response_token_ids": array("i", range(3)).tobytes(),
            "response_logprobs": array("f", [0.0] * 3).tobytes(),
            "reward": None,
            "resources_version": 4,
            "finish_reason": "stop",
            "metadata": "{}",
        }
        for n in range(2)
    ]
    joined = {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "attempt_number": 1,
        "revision": 0,
        "status": "succeeded",
        "occurred_at_us": NOW_US,
        "run_id": "run-1",
        "reward": 0.5,
        "triplets": triplets,
        "adapter": "llm_calls",
        "adapter_version": "1",
        "content_hash": "x",
    }
    scene.produce("triplets", "TripletsJoined", joined, {**joined, "revision": 1, "reward": 0.75})
    scene.wait_sql("select count(*) from triplets", "4")
    columns = "revision, span_id, prompt_tokens, response_tokens, rollout_reward, reward, resources_version"
    assert scene.sql(f"select {columns} from triplets order by revision, span_id").splitlines()[1:3] == [
        "0|s1|6|3|0.5||4",
        "1|s0|5|3|0.75||4",
    ]


def test_a_schema_that_gains_a_field_adds_a_column(scene_on: Scene) -> None:
    scene_on.apply("rollouts-postgres", "attempts-postgres")
    scene_on.produce("rollouts", "RolloutStateChanged", rollout(1, attempts=[attempt(1)]))
    scene_on.wait_sql("select count(*) from rollouts", "1")
    newer = copy.deepcopy(events.current("RolloutStateChanged"))
    newer["fields"].append({"name": "priority", "type": "int", "default": 0})
    newer["fields"].append({"name": "budget", "type": ["null", "double"], "default": None})
    attempts = next(field for field in newer["fields"] if field["name"] == "attempts")
    attempts["type"]["items"]["fields"].append({"name": "turns", "type": "long", "default": 0})
    registry = SchemaRegistryClient({"url": scene_on.registry_url})
    schema_id = registry.register_schema(f"{scene_on.namespace}.rollouts-value", Schema(json.dumps(newer), "AVRO"))
    body = io.BytesIO(struct.pack(">bI", 0, schema_id))
    body.seek(5)
    event = rollout(2, priority=7, budget=1.5, attempts=[attempt(2, turns=3)])
    fastavro.schemaless_writer(body, fastavro.parse_schema(newer), event)
    scene_on.produce_raw("rollouts", body.getvalue(), "ro-2")
    scene_on.produce("rollouts", "RolloutStateChanged", rollout(3))  # a writer that is not updated yet
    scene_on.wait_sql("select count(*) from rollouts", "3")
    assert scene_on.sql("select rollout_id, priority, budget from rollouts order by 1").splitlines() == [
        "ro-1||",
        "ro-2|7|1.5",
        "ro-3||",
    ]
    scene_on.wait_sql("select rollout_id, turns from attempts order by 1", "ro-1|\nro-2|3")
