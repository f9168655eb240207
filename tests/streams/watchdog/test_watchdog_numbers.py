"""Numbers that nobody meant, from topics that anybody may write to: one bad rollout or worker costs nobody else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.schemas.codec import Codec
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.watchdog.core import Due, Limits, Sight, Suspicions, judge
from agl_stream.streams.watchdog.view import View

from ..makers import attempt_state
from ..makers import make as event

SECOND = 1_000_000
START = 1_000_000_000 * SECOND
CODEC = Codec()

doubles = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-9, 1e13, 1e300, 1e305])
longs = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, START, 2**63 - 1])
ints = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 2, 1100, 2**31 - 1])


def rollout(name: str, status: str, latest: dict[str, Any], **config: Any) -> dict[str, Any]:
    limits = {
        "timeout_seconds": None,
        "unresponsive_seconds": None,
        "max_attempts": 1,
        "retry_condition": [],
        "backoff_seconds": 0.0,
        **config,
    }
    changed = event("RolloutStateChanged", rollout_id=name, version=1, status=status, config=limits, attempts=[latest])
    return on_the_wire("RolloutStateChanged", changed)


def attempt(name: str, status: str = "running", **fields: Any) -> dict[str, Any]:
    fields = {"worker_id": "w-" + name, "worker_instance": "1", "started_at_us": START, **fields}
    return attempt_state(name, status=status, **fields)


def heartbeat(name: str, interval_seconds: float, **fields: Any) -> dict[str, Any]:
    beat = event("WorkerHeartbeat", worker_id="w-" + name, worker_instance="1", role="runner", **fields)
    return on_the_wire("WorkerHeartbeat", {**beat, "interval_seconds": interval_seconds})


def on_the_wire(event_type: str, given: dict[str, Any]) -> dict[str, Any]:
    return CODEC.decode(CODEC.encode(event_type, given))[1]


def due(view: View, at: float) -> list[Due]:
    found = judge(
        view,
        START + int(at * SECOND),
        sight=Sight(0, settled=True),
        limits=Limits(claim_lease_us=30 * SECOND, worker_lost_us=60 * SECOND),
        suspicions=Suspicions(),
        last_activity=lambda _: {},
        consumed=dict,
    )
    for topic, said in found:
        CODEC.encode(TOPICS[topic].event, said)
    return found


@given(
    status=st.sampled_from(["queuing", "preparing", "running", "requeuing"]),
    of_attempt=st.sampled_from(["preparing", "running", "failed", "timeout", "unresponsive"]),
    limits=st.tuples(st.none() | doubles, st.none() | doubles, doubles, ints),
    numbers=st.tuples(ints, ints),
    times=st.tuples(st.none() | longs, st.none() | longs, longs),
    interval=doubles,
    seen_at_us=longs,
)
def test_no_number_keeps_the_watchdog_from_the_others(
    status: str,
    of_attempt: str,
    limits: tuple[Any, ...],
    numbers: tuple[int, int],
    times: tuple[Any, ...],
    interval: float,
    seen_at_us: int,
):
    view = View()
    bad = attempt("bad", of_attempt, delivery=numbers[1], started_at_us=times[0], ended_at_us=times[1])
    bad["attempt_number"] = numbers[0]
    config = dict(
        zip(("timeout_seconds", "unresponsive_seconds", "backoff_seconds", "max_attempts"), limits, strict=True)
    )
    state = rollout("bad", status, bad, **config)
    view.rollout_changed({**state, "occurred_at_us": times[2]}, seen_at_us=START, sent_at_us=seen_at_us)
    view.heartbeat(heartbeat("bad", interval), seen_at_us=START)
    view.rollout_changed(
        rollout("good", "running", attempt("good"), timeout_seconds=10.0), seen_at_us=START, sent_at_us=START
    )
    said = [entry.event for entry in due(view, 11) if entry.event["rollout_id"] == "good"]
    assert [entry["status"] for entry in said] == ["timeout"]
    view.prune(START + 11 * SECOND)


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf, -5.0, 1e300, 1e305])
def test_a_limit_that_is_none_limits_nothing(limit: float):
    view = View()
    running = rollout("r", "running", attempt("r"), timeout_seconds=limit, unresponsive_seconds=limit)
    view.rollout_changed(running, seen_at_us=START, sent_at_us=START)
    assert due(view, 1e8) == []


@pytest.mark.parametrize("interval", [math.nan, math.inf, -math.inf, -5.0, 0.0])
def test_an_interval_that_is_none_is_no_promise(interval: float):
    view = View()
    view.rollout_changed(rollout("r", "running", attempt("r")), seen_at_us=START, sent_at_us=START)
    view.heartbeat(heartbeat("r", interval), seen_at_us=START)
    assert due(view, 60) == []
    assert [entry.event["status"] for entry in due(view, 61)] == ["unresponsive"]


@pytest.mark.parametrize("interval", [1e13, 1e300])
def test_a_worker_that_promises_nothing_for_ages_is_given_up_after_days(interval: float):
    view = View()
    view.rollout_changed(rollout("r", "running", attempt("r")), seen_at_us=START, sent_at_us=START)
    view.heartbeat(heartbeat("r", interval), seen_at_us=START)
    assert due(view, 86_400) == []
    assert [entry.event["status"] for entry in due(view, 3 * 86_400 + 1)] == ["unresponsive"]


@pytest.mark.parametrize("backoff", [0.0, -1.0, math.nan, math.inf])
def test_a_backoff_that_is_none_is_over_at_once(backoff: float):
    """An update may lift it while its rollout waits; nobody else would ever end the wait."""
    view = View()
    waiting = rollout("r", "requeuing", attempt("r", "failed", ended_at_us=START), backoff_seconds=backoff)
    view.rollout_changed(waiting, seen_at_us=START, sent_at_us=START)
    assert [entry.event["action"] for entry in due(view, 0)] == ["requeue"]


def test_a_backoff_after_many_attempts_is_long_and_no_error():
    view = View()
    latest = attempt("r", "failed", ended_at_us=START)
    latest["attempt_number"] = 2000
    waiting = rollout("r", "requeuing", latest, backoff_seconds=1.0)
    view.rollout_changed(waiting, seen_at_us=START, sent_at_us=START)
    assert due(view, 1e9) == []
