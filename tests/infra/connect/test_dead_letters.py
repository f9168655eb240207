"""What cannot be read or written goes to the dead letter topic with its reason; the rows behind it arrive."""

from __future__ import annotations

import struct

import pytest

from .conftest import Scene, attempt, rollout, wait_for

pytestmark = pytest.mark.engines

QUEUE = "dead-letters.rollouts-postgres"


def reasons(scene: Scene, count: int) -> dict[bytes, str]:
    """Value of each dead letter to the message that came with it."""
    found: dict[bytes, str] = {}
    for record in scene.read(QUEUE, count):
        headers = {name: value for name, value in record.headers()}
        assert headers["__connect.errors.topic"] == f"{scene.namespace}.rollouts".encode()
        found[record.value()] = headers["__connect.errors.exception.message"].decode()
    return found


def test_poison_is_put_aside_with_reasons_and_what_follows_arrives(scene: Scene) -> None:
    scene.apply("rollouts-postgres")
    good = scene.codec.encode("RolloutStateChanged", rollout(0))
    poison = {
        b"not framed": "byte 0",
        b"": "byte 0",
        struct.pack(">bI", 0, 999_999) + b"x": "schema id 999999 is unknown",
        good[:-3]: "follow",
        good + b"x": "1 bytes are left over",
        # a string of 2**62 bytes and an array of as many items: refused before memory is taken
        good[:5] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f": "bytes are wanted",
        good[:-1] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f": "a block of",
    }
    for value in poison:
        scene.produce_raw("rollouts", value)
    scene.produce("rollouts", "RolloutStateChanged", *[rollout(n) for n in range(20)])
    scene.wait_sql("select count(*) from rollouts", "20")
    found = reasons(scene, len(poison))
    assert {value: expected in found[value] for value, expected in poison.items()} == dict.fromkeys(poison, True), found
    assert scene.agl("connect", "status").exit_code == 0


def test_a_row_that_the_database_refuses_is_put_aside_alone(scene: Scene) -> None:
    scene.apply("rollouts-postgres", "attempts-postgres")
    scene.produce("rollouts", "RolloutStateChanged", rollout(0, attempts=[attempt(0)]))
    scene.wait_sql("select count(*) from rollouts", "1")
    scene.sql("alter table rollouts add check (rollout_id <> 'ro-3')")
    scene.produce("rollouts", "RolloutStateChanged", *[rollout(n, attempts=[attempt(n)]) for n in range(6)])
    scene.wait_sql("select string_agg(rollout_id, ' ' order by rollout_id) from rollouts", "ro-0 ro-1 ro-2 ro-4 ro-5")
    (message,) = reasons(scene, 1).values()
    assert "violates check constraint" in message
    scene.wait_sql("select count(*) from attempts", "6")  # other sinks do not care


def test_a_table_that_does_not_fit_stops_the_task_which_status_tells_and_restart_cures(scene: Scene) -> None:
    scene.sql("create table rollouts (rollout_id text primary key, version boolean)")
    scene.apply("rollouts-postgres")
    scene.produce("rollouts", "RolloutStateChanged", *[rollout(n) for n in range(5)])
    result = wait_for(lambda: (found := scene.agl("connect", "status")).exit_code == 1 and found, "the task's failure")
    assert f"{scene.namespace}-rollouts-postgres: " in result.output and "boolean" in result.output
    scene.sql("drop table rollouts")
    result = scene.agl("connect", "restart")
    assert result.output == f"restarted {scene.namespace}-rollouts-postgres\n"
    scene.wait_sql("select count(*) from rollouts", "5")
    wait_for(lambda: scene.agl("connect", "status").exit_code == 0, "health")
    assert scene.agl("connect", "restart").output == "nothing has failed\n"
