"""Limits of a rollout: what a request or an update may not ask for, and what then happens."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from agl_stream.schemas import events
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.lifecycle.limits import LONGEST_SECONDS, NO_LIMITS
from agl_stream.streams.lifecycle.state import announcement, dump_state, load_state, offer

from .histories import control, requested, run

CODEC = Codec()
BAD_LIMITS = [
    ("timeout_seconds", math.nan),
    ("timeout_seconds", math.inf),
    ("timeout_seconds", -1.0),
    ("timeout_seconds", 0.0),
    ("timeout_seconds", 1e300),
    ("unresponsive_seconds", math.nan),
    ("unresponsive_seconds", math.inf),
    ("unresponsive_seconds", LONGEST_SECONDS * 1.01),
    ("backoff_seconds", math.nan),
    ("backoff_seconds", -math.inf),
    ("backoff_seconds", -0.5),
    ("max_attempts", 0),
    ("max_attempts", -(2**31)),
]


@pytest.mark.parametrize(("name", "value"), BAD_LIMITS)
def test_a_request_with_an_impossible_limit_ends_and_says_which(name: str, value: Any):
    good = {"timeout_seconds": 5.0, "max_attempts": 2, "retry_condition": ["failed"]}
    state, (effects,) = run([requested(config={**good, name: value})])
    assert state is not None and state["request"] is not None
    assert (state["status"], state["reason_code"], state["attempts"]) == ("failed", "bad_config", [])
    rejects = [effect.event for effect in effects if effect.topic == "rejects"]
    assert [(event["reason_code"], event["detail"]) for event in rejects] == [
        ("bad_config", f"config.{name} cannot be {value!r}")
    ]
    # what could be read is still shown, and what is kept comes back as it was
    assert state["request"]["input"] == requested().event["input"]
    kept = {key: limit for key, limit in good.items() if key != name}
    assert kept.items() <= state["request"]["config"].items()
    assert load_state(dump_state(state)) == state
    for effect in effects:
        CODEC.encode(TOPICS[effect.topic].event, effect.event)


def test_no_json_and_no_number_at_once_still_leave_something_to_encode():
    state, _ = run([requested(input="{no json", config={"backoff_seconds": math.nan})])
    assert state is not None and state["reason_code"] == "bad_json"
    assert load_state(dump_state(state)) == state


UPDATES = [
    ("max_attempts", 2**31),
    ("max_attempts", True),
    ("max_attempts", 2.0),
    ("timeout_seconds", 1e300),
    ("unresponsive_seconds", 2**63),
    ("backoff_seconds", 1e13),
    ("backoff_seconds", None),
    ("retries", 1),
]


@pytest.mark.parametrize(("name", "value"), UPDATES)
def test_an_update_is_held_to_the_same_limits(name: str, value: Any):
    payload = orjson.dumps({"config": {name: value}}).decode()
    before, _ = run([requested()])
    after, effects = run([control("update", payload=payload)], state=before, first_offset=1)
    assert before is not None and after is before
    ((reject,),) = effects
    assert reject.event["detail"].startswith(f"config.{name} cannot be ")


def test_the_widest_limits_are_taken():
    widest = {"timeout_seconds": LONGEST_SECONDS, "backoff_seconds": LONGEST_SECONDS, "max_attempts": 2**31 - 1}
    state, _ = run([requested(config=widest)])
    assert state is not None and state["status"] == "queuing"


def test_a_state_kept_before_limits_were_checked_encodes_again():
    state, _ = run([requested(config={"timeout_seconds": 5.0})])
    assert state is not None and state["request"] is not None
    unchecked = {"backoff_seconds": math.nan, "max_attempts": 2**31}
    state["request"]["config"].update(unchecked)
    loaded = load_state(dump_state(state))
    assert loaded["request"] is not None
    assert loaded["request"]["config"] == {**requested().event["config"], "timeout_seconds": 5.0}
    CODEC.encode("RolloutStateChanged", announcement(loaded))
    CODEC.encode("AttemptDispatched", offer(loaded))


def test_the_defaults_are_those_of_the_schema():
    fields = {field["name"]: field for field in events.current("RolloutRequested")["fields"]}
    assert fields["config"]["default"] == NO_LIMITS
    assert {field["name"]: field["default"] for field in fields["config"]["type"]["fields"]} == NO_LIMITS
