"""Old deliveries and cancelled rollouts are recognised, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agl_stream.consumers.runner.memory import CancelledRollouts, DeliveryMemory


@given(st.lists(st.tuples(st.sampled_from(["at-1", "at-2", "at-3"]), st.integers(1, 5))))
def test_a_delivery_runs_at_most_once_and_never_after_a_newer_one(offers: list[tuple[str, int]]) -> None:
    memory = DeliveryMemory()
    run: dict[str, list[int]] = {}
    for attempt_id, delivery in offers:
        if not memory.is_stale(attempt_id, delivery):
            memory.remember(attempt_id, delivery)
            run.setdefault(attempt_id, []).append(delivery)
    for deliveries in run.values():
        assert deliveries == sorted(set(deliveries))
    assert {a: max(d) for a, d in run.items()} == {a: max(d for x, d in offers if x == a) for a, _ in offers}


def test_an_attempt_that_ended_here_is_never_offered_again() -> None:
    memory = DeliveryMemory()
    memory.remember("at-1", 1)
    memory.finish("at-1")
    assert memory.is_stale("at-1", 1_000_000)


def test_the_oldest_are_forgotten() -> None:
    memory = DeliveryMemory(limit=2)
    for attempt_id in ("at-1", "at-2", "at-3"):
        memory.remember(attempt_id, 1)
    assert [memory.is_stale(a, 1) for a in ("at-1", "at-2", "at-3")] == [False, True, True]


def test_cancel_holds_until_asked_for_again() -> None:
    cancelled = CancelledRollouts(limit=2)
    cancelled.take_note("ro-1", "cancel")
    cancelled.take_note("ro-1", "update")
    assert "ro-1" in cancelled
    cancelled.take_note("ro-1", "requeue")
    assert "ro-1" not in cancelled
    for rollout_id in ("ro-2", "ro-3", "ro-4"):
        cancelled.take_note(rollout_id, "cancel")
    assert [r in cancelled for r in ("ro-2", "ro-3", "ro-4")] == [False, True, True]
