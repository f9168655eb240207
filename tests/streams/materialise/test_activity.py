"""Attempts that only their spans show to be alive."""

from __future__ import annotations

from typing import Any

from agl_stream.schemas.codec import Codec
from agl_stream.streams.materialise.activity import SETTLE_SECONDS, ActivityWatch

from ..makers import attempt_state, rollout, span


def state(status: str, rollout_id: str = "ro-1") -> dict[str, Any]:
    return rollout(rollout_id, 2, "preparing", attempts=[attempt_state(rollout_id, 1, status=status)])


def reports(watch: ActivityWatch, now: float, *rollouts: dict[str, Any]) -> list[dict[str, Any]]:
    return watch.reports(watch.due(now), {event["rollout_id"]: event for event in rollouts}, now)


def test_the_first_span_of_a_quiet_attempt_is_reported_once() -> None:
    watch = ActivityWatch()
    watch.on_span(span("ro-1", "a", occurred_at_us=77), 0.0)
    watch.on_span(span("ro-1", "b"), 0.1)
    assert reports(watch, SETTLE_SECONDS - 0.01, state("preparing")) == []
    (event,) = reports(watch, SETTLE_SECONDS, state("preparing"))
    assert (event["status"], event["attempt_number"], event["occurred_at_us"]) == ("running", 1, 77)
    assert Codec().encode("AttemptStatusChanged", event)
    watch.on_span(span("ro-1", "c"), 5.0)
    assert reports(watch, 99.0, state("preparing")) == []


def test_an_attempt_known_as_running_or_ended_is_no_news() -> None:
    for status in ("running", "succeeded", "failed", "timeout"):
        watch = ActivityWatch()
        watch.on_span(span("ro-1", "a"), 0.0)
        assert reports(watch, 9.0, state(status)) == []


def test_an_unresponsive_attempt_that_speaks_again_is_news_again() -> None:
    watch = ActivityWatch()
    watch.on_span(span("ro-1", "a"), 0.0)
    first = reports(watch, 1.0, state("preparing"))
    watch.on_rollout(state("running"))
    watch.on_span(span("ro-1", "b"), 2.0)
    assert watch.due(9.0) == []
    watch.on_rollout(state("unresponsive"))
    watch.on_span(span("ro-1", "c"), 10.0)
    again = reports(watch, 11.0, state("unresponsive"))
    assert len(first) == len(again) == 1
    assert first[0]["event_id"] != again[0]["event_id"]


def test_a_rollout_not_in_the_store_yet_is_asked_for_again_but_not_for_ever() -> None:
    watch = ActivityWatch()
    watch.on_span(span("ro-1", "a"), 0.0)
    assert reports(watch, 1.0) == []
    assert len(reports(watch, 2.0, state("preparing"))) == 1
    watch.on_span(span("ro-ghost", "a"), 10.0)
    tries = []
    for n in range(20, 40):
        signs = watch.due(float(n))
        tries.append(len(signs))
        assert watch.reports(signs, {}, float(n)) == []
    assert sum(tries) == 5
