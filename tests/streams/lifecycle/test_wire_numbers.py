"""Numbers that nobody meant, from writers that anybody may be: they stop nothing, and everything still encodes."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import attempt_id
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.dispatch import RoundRobin
from agl_stream.streams.lifecycle.batch import BatchFold, Incoming, Writes
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.limits import LATEST_US
from agl_stream.streams.lifecycle.replayable import ReplayableLifecycle
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, dump_state, load_state

from ..makers import make
from .histories import ROLLOUT, Given, control, reported, requested

many = settings(max_examples=int(os.environ.get("AGL_STREAM_TEST_EXAMPLES", "100")), deadline=None)

PARTITIONS = 4
HOME = murmur2_partition(ROLLOUT.encode(), PARTITIONS)
CODEC = Codec()
SENT_MS = 1_790_000_000_000
NO_TIMES = [-(2**63), -1, 0, LATEST_US + 1, 1_790_000_000_000_000_000, 2**63 - 1]
"""The one before the last is in nanoseconds."""


class Known:
    resources = ResourceView()

    def ended(self, rollout_ids: Any) -> set[str]:
        return set()


class Lifecycle:
    """A table that stands in its changelog and nowhere else: every batch is a restart. Bytes in, bytes out."""

    def __init__(self) -> None:
        self._fold = BatchFold(CODEC.decode, RoundRobin(PARTITIONS), Known(), partitions=PARTITIONS)
        self._changelog: dict[str, bytes] = {}
        self._offset = 0

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        encoded = self._changelog.get(rollout_id)
        return None if encoded is None else load_state(encoded)

    @property
    def state(self) -> RolloutState:
        state = self.get(ROLLOUT, HOME)
        assert state is not None
        return state

    def read(self, *records: Given | bytes, timestamp_ms: int = SENT_MS, topic: str = "attempts") -> Writes:
        incoming: list[Incoming] = []
        for record in records:
            is_event = isinstance(record, Given)
            value = CODEC.encode(record.event_type, record.event) if is_event else record
            place = Source(record.topic if is_event else topic, HOME, self._offset, timestamp_ms, None, value)
            incoming.append(Incoming(place))
            self._offset += 1
        writes = self._fold.apply(incoming, self)
        for rollout_id, (_, state) in writes.states.items():
            encoded = self._changelog[rollout_id] = dump_state(state)
            assert load_state(encoded) == state
        for effect in writes.effects:
            CODEC.encode(TOPICS[effect.topic].event, effect.event)
        return writes


def rejects(writes: Writes) -> list[tuple[str, str]]:
    return [(e.event["reason_code"], e.event["detail"]) for e in writes.effects if e.topic == "rejects"]


@pytest.mark.parametrize("at_us", NO_TIMES)
def test_a_time_that_is_none_is_the_records_own(at_us: int):
    lifecycle = Lifecycle()
    lifecycle.read(requested(occurred_at_us=at_us), reported("running", occurred_at_us=at_us))
    assert lifecycle.state["requested_at_us"] == SENT_MS * 1000
    assert lifecycle.state["status"] == "running"
    silence = reported("unresponsive", occurred_at_us=SENT_MS * 1000 + 1)
    lifecycle.read(silence)
    assert lifecycle.state["status"] == "failed", "silence is later than a start in no year at all"


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, 2**62, 2**63 - 1])
def test_a_records_own_time_may_be_anything(timestamp_ms: int):
    lifecycle = Lifecycle()
    writes = lifecycle.read(b"?", requested(occurred_at_us=0), timestamp_ms=timestamp_ms)
    assert [code for code, _ in rejects(writes)] == ["not_framed"]
    assert 0 < lifecycle.state["requested_at_us"] <= LATEST_US


@pytest.mark.parametrize("at_us", [2**63 - 1, 1_790_000_000_000_000_000])
def test_resources_from_no_year_at_all_are_not_the_latest_for_ever(at_us: int):
    replay = ReplayableLifecycle()
    for offset, published_at_us in enumerate([at_us, SENT_MS * 1000 + 1]):
        event = make("ResourcesPublished", resources_id=f"rs-{offset}", version=1, occurred_at_us=published_at_us)
        replay.feed("ResourcesPublished", event, Source("resources", 0, offset, SENT_MS))
    given = requested()
    replay.feed(given.event_type, given.event, Source(given.topic, HOME, 0, SENT_MS))
    request = replay.states[ROLLOUT]["request"]
    assert request is not None and request["resources_id"] == "rs-1"


BAD_REWARDS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("reward", BAD_REWARDS)
@pytest.mark.parametrize("early", [False, True])
def test_a_success_with_a_reward_that_is_no_number_is_none(reward: float, early: bool):
    lifecycle = Lifecycle()
    request, success = requested(), reported("succeeded", reward=reward)
    first, second = (success, request) if early else (request, success)
    writes = [lifecycle.read(first), lifecycle.read(second)]
    attempt = lifecycle.state["attempts"][0]
    assert (attempt["status"], attempt["reason_code"], attempt["reward"]) == ("failed", "bad_reward", None)
    assert (lifecycle.state["status"], lifecycle.state["reason_code"]) == ("failed", "bad_reward")
    assert [entry for made in writes for entry in rejects(made)] == [("bad_reward", f"the reward is {reward}")]


@pytest.mark.parametrize("status", ["running", "failed", "timeout"])
def test_whatever_else_is_reported_with_such_a_reward_counts(status: str):
    lifecycle = Lifecycle()
    lifecycle.read(requested(), reported("preparing", worker_id="w"))
    version = lifecycle.state["version"]
    again = [reported(status, at=2, reward=math.nan, reason_code="agent_error")] * 2
    lifecycle.read(again[0])
    assert lifecycle.state["attempts"][0]["status"] == status
    assert lifecycle.state["version"] == version + 1
    lifecycle.read(again[1])
    assert lifecycle.state["version"] == version + 1


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_a_report_of_a_negative_attempt_waits_for_nothing(number: int):
    lifecycle = Lifecycle()
    writes = lifecycle.read(requested(), reported("running", number))
    assert [code for code, _ in rejects(writes)] == ["unknown_attempt"]
    assert lifecycle.state["held"] == []


doubles = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-9, 1.0, 1e13, 1e300])
longs = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*NO_TIMES, 1, SENT_MS * 1000, LATEST_US])
ints = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 2, 2**31 - 1])
numbers_of_json = doubles | st.integers(-(2**64), 2**65) | st.none() | st.booleans()
requests = st.builds(
    requested,
    occurred_at_us=longs,
    group_size=st.none() | ints,
    resources_version=st.none() | ints,
    input_ref=st.none() | st.fixed_dictionaries({"uri": st.just("u"), "sha256": st.just("s"), "length": longs}),
    config=st.fixed_dictionaries(
        {"retry_condition": st.sampled_from([[], ["failed", "timeout", "unresponsive"]])},
        optional={
            "timeout_seconds": st.none() | doubles,
            "unresponsive_seconds": st.none() | doubles,
            "backoff_seconds": doubles,
            "max_attempts": ints,
        },
    ),
)


@st.composite
def reports(draw: st.DrawFn) -> Given:
    number = draw(ints)
    names = st.sampled_from([attempt_id(ROLLOUT, 1), attempt_id(ROLLOUT, number)])
    return reported(
        draw(st.sampled_from(["unknown", "preparing", "running", "succeeded", "failed", "timeout", "unresponsive"])),
        event_id=draw(st.text("ab", max_size=3)),
        attempt_id=draw(names),
        attempt_number=draw(st.sampled_from([0, 1, number])),
        occurred_at_us=draw(longs),
        delivery=draw(ints),
        reward=draw(st.none() | doubles),
        metadata=json.dumps({"a": draw(numbers_of_json.filter(is_json))}),
    )


@st.composite
def controls(draw: st.DrawFn) -> Given:
    limit = st.sampled_from(["timeout_seconds", "unresponsive_seconds", "backoff_seconds", "max_attempts"])
    payload = {
        "delivery": draw(numbers_of_json.filter(is_json)),
        "config": draw(st.dictionaries(limit, numbers_of_json.filter(is_json), max_size=2)),
        "metadata": {"a": draw(numbers_of_json.filter(is_json))},
        "input": draw(numbers_of_json.filter(is_json)),
    }
    action = draw(st.sampled_from(["cancel", "requeue", "start_attempt", "update", "update"]))
    if action == "update":
        del payload["delivery"]
    return control(
        action,
        event_id=draw(st.text("ab", max_size=3)),
        attempt_id=draw(st.sampled_from([None, attempt_id(ROLLOUT, 1), attempt_id(ROLLOUT, 2)])),
        occurred_at_us=draw(longs),
        payload=json.dumps(payload),
    )


def is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


batches = st.lists(st.tuples(st.lists(requests | reports() | controls(), max_size=4), longs), max_size=5)


@many
@given(history=batches, request=requests, at=st.integers(0, 5))
def test_any_numbers_are_read_kept_and_written(history: list[tuple[list[Given], int]], request: Given, at: int):
    """Whatever floats and integers come: no exception, a state that its changelog gives back, events that encode
    (``Lifecycle.read`` sees to both)."""
    lifecycle = Lifecycle()
    for records, timestamp_ms in [*history[:at], ([requested()], SENT_MS), *history[at:], ([request], SENT_MS)]:
        lifecycle.read(*records, timestamp_ms=timestamp_ms)
    assert lifecycle.state["request"] is not None


@pytest.mark.parametrize("depth", [150, 300, 1000])
def test_json_that_could_not_be_written_again_is_refused(depth: int):
    deep = '{"a":' * depth + "1" + "}" * depth
    lifecycle = Lifecycle()
    lifecycle.read(requested())
    for report in (
        reported("running", metadata=deep),
        control("update", payload=f'{{"metadata": {deep}}}'),
        control("update", 2, payload=f'{{"input": {deep}}}'),
        control("update", 3, payload=f'{{"config": {{"max_attempts": {deep}}}}}'),
    ):
        assert [code for code, _ in rejects(lifecycle.read(report))] == ["bad_json"]
    assert lifecycle.state["attempts"][0]["status"] == "preparing"
    lifecycle = Lifecycle()
    lifecycle.read(requested(input=deep))
    assert (lifecycle.state["status"], lifecycle.state["reason_code"]) == ("failed", "bad_json")
