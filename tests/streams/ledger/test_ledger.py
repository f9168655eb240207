"""The account: one place for each rollout, and the faults it shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agl_stream.streams.ledger.core import Ledger, Place, Settlement, place_of, trained_twice

STATUSES = ("queuing", "preparing", "running", "requeuing", "succeeded", "failed", "cancelled")
settlements = st.builds(
    Settlement,
    st.sampled_from(["a", "b"]),
    st.integers(1, 4),
    st.sampled_from(["trained", "dropped", "failed", "cancelled", "unknown"]),
    st.sampled_from([None, "stale", "no_reward"]),
)


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.lists(settlements, max_size=4)), max_size=30))
def test_every_rollout_is_counted_once(rollouts: list[tuple[str, list[Settlement]]]) -> None:
    ledger = Ledger()
    for number, (status, told) in enumerate(rollouts):
        ledger.add(f"ro-{number}", f"run-{number % 3}", status, None, told)
    account = ledger.result()
    assert account["requested"] == len(rollouts)
    parts = account["trained"] + account["cancelled"] + account["in_flight"]
    parts += sum(account["dropped"].values()) + sum(account["failed"].values())
    assert parts == len(rollouts)
    assert account["trained"] == sum(any(s.outcome == "trained" for s in told) for _, told in rollouts)
    for name in ("requested", "trained", "cancelled", "in_flight"):
        assert account[name] == sum(run[name] for run in account["runs"].values())
    twice = [f"ro-{n}" for n, (_, told) in enumerate(rollouts) if trained_twice(told)]
    assert account["trained_twice"] == sorted(twice)
    assert account["balanced"] is (not twice)


def test_the_latest_manifest_decides_unless_one_trained() -> None:
    dropped = Settlement("l", 1, "dropped", "stale")
    assert place_of("succeeded", None, [dropped]) == ("dropped", "stale")
    assert place_of("succeeded", None, [Settlement("l", 2, "cancelled", None), dropped]) == ("cancelled", None)
    assert place_of("succeeded", None, [dropped, Settlement("l", 2, "trained", None)]) == ("trained", None)


def test_without_a_manifest_the_rollout_speaks_for_itself() -> None:
    assert place_of("failed", "agent_error", []) == ("failed", "agent_error")
    assert place_of("failed", None, []) == ("failed", "unspecified")
    assert place_of("cancelled", "cancelled", []) == ("cancelled", None)
    # succeeded and not settled: no learner has had it yet
    assert place_of("succeeded", None, []) == ("in_flight", None)


def test_the_same_step_told_twice_is_no_second_training() -> None:
    once = Settlement("l", 3, "trained", None)
    assert not trained_twice([once, once, Settlement("other", 9, "trained", None)])
    assert trained_twice([once, Settlement("l", 4, "trained", None)])


def test_a_settled_rollout_nobody_requested_is_an_imbalance() -> None:
    ledger = Ledger()
    ledger.add("ro-1", None, "succeeded", None)
    assert ledger.result()["balanced"] is True
    ledger.add_unrequested("ro-ghost")
    account = ledger.result()
    assert (account["balanced"], account["unrequested"], account["requested"]) == (False, ["ro-ghost"], 1)


def test_of_two_learners_at_one_step_the_order_of_reading_does_not_decide() -> None:
    told = [Settlement("l1", 1, "dropped", "a"), Settlement("l2", 1, "dropped", "b")]
    assert place_of("succeeded", None, told) == place_of("succeeded", None, told[::-1]) == Place("dropped", "b")
