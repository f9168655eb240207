"""What is due when: limits, silence, lost workers, leases, backoffs. Times are given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.watchdog.core import Due, Limits, Sight, Suspicions, judge
from agl_stream.streams.watchdog.view import View

from ..makers import make as event

SECOND = 1_000_000
START = 1_000 * SECOND
ROLLOUT = "ro-1"
ATTEMPT = attempt_id(ROLLOUT, 1)


def attempt(status: str = "running", number: int = 1, **fields: Any) -> dict[str, Any]:
    base = {
        "attempt_id": attempt_id(ROLLOUT, number),
        "attempt_number": number,
        "status": status,
        "delivery": 1,
        "worker_id": "w",
        "worker_instance": "w-1",
        "dispatched_at_us": START,
        "started_at_us": START,
        "ended_at_us": None,
        "reward": None,
        "reason_code": None,
        "detail": None,
        "metadata": "{}",
    }
    return base | fields


class Scene:
    """A view, and a watchdog that has seen well since long ago unless told otherwise."""

    def __init__(self) -> None:
        self.view = View()
        self.suspicions = Suspicions()
        self.sight = Sight(0, settled=True)
        self.spans: dict[str, int] = {}
        self.consumed: dict[int, int] = {}

    def state(self, status: str, latest: dict[str, Any], version: int = 1, seen: int = START, **config: Any) -> None:
        limits = {
            "timeout_seconds": None,
            "unresponsive_seconds": None,
            "max_attempts": 1,
            "retry_condition": [],
            "backoff_seconds": 0.0,
        }
        changed = event(
            "RolloutStateChanged",
            rollout_id=ROLLOUT,
            version=version,
            status=status,
            config=limits | config,
            attempts=[latest],
            occurred_at_us=seen,
        )
        self.view.rollout_changed(changed, seen_at_us=seen, sent_at_us=seen)

    def heartbeat(self, at: int, *, instance: str = "w-1", holds: list[str] | None = None, **fields: Any) -> None:
        held = [{"rollout_id": ROLLOUT, "attempt_id": name} for name in (holds or [])]
        beat = event(
            "WorkerHeartbeat",
            worker_id="w",
            worker_instance=instance,
            role="runner",
            interval_seconds=5.0,
            attempts=held,
            **fields,
        )
        self.view.heartbeat(beat, seen_at_us=START + at * SECOND)

    def due(self, at: float) -> list[Due]:
        return judge(
            self.view,
            START + int(at * SECOND),
            sight=self.sight,
            limits=Limits(claim_lease_us=30 * SECOND, worker_lost_us=60 * SECOND),
            suspicions=self.suspicions,
            last_activity=lambda ids: {name: self.spans[name] for name in ids if name in self.spans},
            consumed=lambda: self.consumed,
        )

    def said(self, at: float) -> list[str]:
        return [entry.event.get("status") or entry.event["action"] for entry in self.due(at)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_time_limit_is_strict_and_counts_from_the_claim(scene: Scene):
    scene.state("running", attempt(), timeout_seconds=10.0)
    assert scene.said(10) == []
    due = scene.due(10.000001)
    assert [(entry.topic, entry.event["status"]) for entry in due] == [("attempts", "timeout")]
    assert due[0].event["occurred_at_us"] == START + 10 * SECOND + 1
    assert due[0].event["reason_code"] == "attempt_timeout" and due[0].event["attempt_id"] == ATTEMPT


def test_a_time_limit_goes_before_silence(scene: Scene):
    scene.state("running", attempt(), timeout_seconds=10.0, unresponsive_seconds=5.0)
    assert scene.said(7) == ["unresponsive"]
    assert scene.said(11) == ["timeout"]


def test_silence_ends_with_a_heartbeat_for_this_attempt_or_with_a_span(scene: Scene):
    scene.state("running", attempt(), unresponsive_seconds=10.0)
    assert scene.said(10) == [] and scene.said(11) == ["unresponsive"]
    scene.heartbeat(8, holds=["at-other"])
    assert scene.said(11) == ["unresponsive"]
    scene.heartbeat(8, holds=[ATTEMPT])
    assert scene.said(11) == [] and scene.said(19) == ["unresponsive"]
    scene.spans[ATTEMPT] = START + 15 * SECOND
    assert scene.said(19) == [] and scene.said(26) == ["unresponsive"]


def test_silence_while_the_watchdog_was_blind_does_not_count(scene: Scene):
    scene.state("running", attempt(), unresponsive_seconds=10.0, timeout_seconds=15.0)
    scene.sight = Sight(START + 60 * SECOND, settled=False)
    assert scene.said(60) == [] and scene.said(64) == []
    scene.sight = Sight(START + 60 * SECOND, settled=True)
    assert scene.said(66) == ["timeout"]
    scene.state("running", attempt(), version=2, unresponsive_seconds=10.0)
    assert scene.said(70) == [] and scene.said(71) == ["unresponsive"]


def test_without_limits_only_a_worker_known_by_heartbeats_is_given_up(scene: Scene):
    scene.state("running", attempt())
    assert scene.said(10_000) == []
    scene.heartbeat(100, holds=[ATTEMPT])
    assert scene.said(160) == [] and scene.said(161) == ["unresponsive"]


def test_a_worker_that_comes_back_without_the_attempt_has_lost_it(scene: Scene):
    scene.state("running", attempt())
    scene.heartbeat(5, holds=[ATTEMPT])
    scene.heartbeat(8, instance="w-2")
    assert scene.said(8) == [] and scene.said(10) == []
    due = scene.due(11)
    assert [(entry.event["status"], entry.event["reason_code"]) for entry in due] == [("unresponsive", "worker_lost")]


def test_a_worker_that_claims_again_after_its_restart_has_lost_nothing(scene: Scene):
    scene.state("running", attempt())
    scene.heartbeat(8, instance="w-2")
    assert scene.said(8) == []
    scene.state("running", attempt(worker_instance="w-2"), version=2)
    assert scene.said(12) == [] and scene.suspicions.since_us == {}
    scene.state("running", attempt(), version=3)
    scene.heartbeat(12, instance="w-2", holds=[ATTEMPT])
    assert scene.said(20) == []


def test_a_worker_that_says_goodbye_holds_nothing(scene: Scene):
    scene.state("running", attempt())
    scene.heartbeat(8, status="stopped")
    scene.due(8)
    assert scene.said(12) == ["unresponsive"]


def unclaimed() -> dict[str, Any]:
    return attempt("preparing", started_at_us=None, worker_id=None, worker_instance=None)


def offer(scene: Scene, *, delivery: int = 1, offset: int = 7) -> None:
    dispatched = event("AttemptDispatched", rollout_id=ROLLOUT, attempt_id=ATTEMPT, attempt_number=1, delivery=delivery)
    scene.view.offered(dispatched, partition=2, offset=offset, seen_at_us=START)


def test_an_offer_that_waits_in_the_queue_is_left_there(scene: Scene):
    scene.state("queuing", unclaimed())
    offer(scene)
    scene.consumed = {2: 7}
    assert scene.said(10_000) == []
    scene.consumed = {2: 8}
    assert scene.said(30) == []
    due = scene.due(31)
    assert [(entry.topic, entry.event["action"]) for entry in due] == [("controls", "start_attempt")]
    assert due[0].event["payload"] == '{"delivery": 1}' and due[0].event["attempt_id"] == ATTEMPT


def test_an_offer_that_never_reached_the_topic_is_made_again(scene: Scene):
    scene.state("queuing", unclaimed())
    assert scene.said(31) == ["start_attempt"]


def test_an_old_offer_says_nothing_of_a_new_one(scene: Scene):
    scene.state("queuing", unclaimed() | {"delivery": 2})
    offer(scene, delivery=2, offset=9)
    offer(scene, delivery=1, offset=3)
    scene.consumed = {2: 9}
    assert scene.said(100) == []


def test_a_backoff_doubles_with_each_attempt(scene: Scene):
    for number, wait in ((1, 4), (2, 8), (3, 16)):
        ended = attempt("failed", number, ended_at_us=START)
        scene.state("requeuing", ended, version=number, backoff_seconds=4.0)
        assert scene.said(wait - 0.001) == []
        due = scene.due(wait)
        assert [(entry.event["action"], entry.event["attempt_id"]) for entry in due] == [
            ("requeue", attempt_id(ROLLOUT, number))
        ]


def test_an_ended_rollout_is_no_longer_watched(scene: Scene):
    scene.state("running", attempt(), timeout_seconds=1.0)
    scene.state("succeeded", attempt("succeeded"), version=2, timeout_seconds=1.0)
    assert scene.said(10_000) == [] and scene.view.rollouts == {}


def test_an_older_state_changes_nothing(scene: Scene):
    scene.state("running", attempt(), version=5, timeout_seconds=1.0)
    scene.state("succeeded", attempt("succeeded"), version=4)
    assert scene.said(2) == ["timeout"]


@given(at=st.floats(0, 200), other=st.floats(0, 200), limit=st.sampled_from([None, 5.0, 50.0]))
def test_two_watchdogs_say_the_same_thing_once(at: float, other: float, limit: float | None):
    """Ids do not depend on when a watchdog looks."""
    one, two = Scene(), Scene()
    for scene in (one, two):
        scene.state("running", attempt(), timeout_seconds=limit, unresponsive_seconds=20.0)
    said = {entry.event["status"]: entry.event["event_id"] for entry in one.due(at)}
    for entry in two.due(other):
        assert said.get(entry.event["status"], entry.event["event_id"]) == entry.event["event_id"]


def test_pruning_keeps_what_is_open_or_fresh(scene: Scene):
    scene.state("queuing", unclaimed())
    offer(scene)
    scene.heartbeat(0, holds=["at-gone"])
    scene.view.prune(START + 5_000 * SECOND)
    assert ROLLOUT in scene.view.offers and scene.view.heard == {}
    scene.state("cancelled", unclaimed(), version=2)
    scene.view.prune(START + 10 * SECOND)
    assert ROLLOUT in scene.view.offers
    scene.view.prune(START + 5_000 * SECOND)
    assert scene.view.offers == {}


HOUR = 3_600 * SECOND


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 300 * SECOND, -300 * SECOND])
def test_a_wrong_clock_of_a_worker_neither_ends_nor_spares_an_attempt(ahead: int) -> None:
    """The limit runs from when the lifecycle heard of the start, if the worker's date of it cannot be true."""
    scene = Scene()
    scene.state("running", attempt(started_at_us=START + ahead), timeout_seconds=10.0)
    assert scene.said(9) == []
    assert scene.said(11) == ["timeout"]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, -30 * SECOND])
def test_a_start_is_corrected_by_what_heartbeats_show_of_a_clock(ahead: int) -> None:
    """A date that could be true, of an attempt that was offered long ago, is still wrong by as much as the clock."""
    scene = Scene()
    scene.view.heartbeat(
        event(
            "WorkerHeartbeat",
            worker_id="w",
            worker_instance="w-1",
            role="runner",
            occurred_at_us=START + ahead,
            attempts=[{"rollout_id": ROLLOUT, "attempt_id": ATTEMPT, "attempt_number": 1}],
        ),
        seen_at_us=START,
    )
    offered_long_ago = attempt(started_at_us=START + ahead, dispatched_at_us=START - 2 * HOUR)
    scene.state("running", offered_long_ago, timeout_seconds=10.0)
    assert scene.said(9) == []
    assert scene.said(11) == ["timeout"]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_backoff_runs_from_an_end_that_can_be_true(ahead: int) -> None:
    scene = Scene()
    ended = attempt("failed", ended_at_us=START + ahead)
    scene.state("requeuing", ended, backoff_seconds=10.0, max_attempts=3)
    assert scene.said(9) == []
    assert scene.said(11) == ["requeue"]
