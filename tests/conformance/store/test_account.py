"""The account of training rollouts and the counts of everything."""

from __future__ import annotations

import pytest

from agl_stream.streams.store import StateStore
from tests.conformance.store.events import (
    START_US,
    beat,
    ended,
    joined,
    published,
    put,
    rejected,
    rollout,
    settled,
    span,
    trained,
)  # fmt: skip


def test_an_empty_store_balances(store: StateStore) -> None:
    empty = {
        "requested": 0, "trained": 0, "dropped": {}, "failed": {}, "cancelled": 0, "in_flight": 0, "trained_twice": [],
        "balanced": True,
    }  # fmt: skip
    assert store.account() == store.account("run-1") == empty | {"unrequested": [], "runs": {}}


@pytest.mark.parametrize(
    ("status", "reason_code", "place"),
    [
        ("queuing", None, {"in_flight": 1}),
        ("running", None, {"in_flight": 1}),
        ("succeeded", None, {"in_flight": 1}),
        ("failed", "agent_error", {"failed": {"agent_error": 1}}),
        ("failed", None, {"failed": {"unspecified": 1}}),
        ("cancelled", "by_hand", {"cancelled": 1}),
    ],
)
def test_a_rollout_that_no_manifest_speaks_of(
    store: StateStore, status: str, reason_code: str | None, place: dict[str, object]
) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1", status=status, reason_code=reason_code))
    account = store.account()
    assert account["requested"] == 1 and account["balanced"] is True
    assert {name: account[name] for name in place} == place


def test_what_a_manifest_says_decides(store: StateStore) -> None:
    put(store, "RolloutStateChanged", *[ended(f"ro-{n}") for n in range(5)], ended("ro-5", status="failed"))
    told = [
        *[settled("ro-0"), settled("ro-1", "dropped", "no_reward"), settled("ro-2", "dropped")],
        *[settled("ro-3", "failed", "timeout"), settled("ro-4", "cancelled"), settled("ro-5", "trained")],
    ]
    put(store, "BatchTrained", trained(1, *told))
    account = store.account()
    assert (account["trained"], account["cancelled"], account["in_flight"]) == (2, 1, 0)
    assert account["dropped"] == {"no_reward": 1, "unspecified": 1}
    assert account["failed"] == {"timeout": 1}
    assert (account["requested"], account["balanced"]) == (6, True)


def test_dropped_first_and_trained_later_is_trained(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"), ended("ro-2"))
    put(store, "BatchTrained", trained(2, settled("ro-1"), settled("ro-2", "dropped", "late")))
    put(store, "BatchTrained", trained(1, settled("ro-1", "dropped", "stale"), settled("ro-2")), offset=1)
    account = store.account("run-1")
    assert (account["trained"], account["dropped"], account["trained_twice"]) == (2, {}, [])


def test_the_later_step_decides_what_became_of_a_rollout_dropped_twice(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"))
    put(store, "BatchTrained", trained(10, settled("ro-1", "dropped", "late")))
    put(store, "BatchTrained", trained(9, settled("ro-1", "dropped", "early")), offset=1)
    assert store.account()["dropped"] == {"late": 1}


def test_of_two_learners_at_the_same_step_their_names_decide(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"))
    put(store, "BatchTrained", trained(1, settled("ro-1", "dropped", "b"), learner_id="l2"))
    put(store, "BatchTrained", trained(1, settled("ro-1", "dropped", "a"), learner_id="l1"), offset=1)
    assert store.account()["dropped"] == {"b": 1}


def test_validation_and_test_rollouts_are_not_in_the_account(store: StateStore) -> None:
    modes = ("train", "val", "test", "unknown")
    put(store, "RolloutStateChanged", *[rollout(f"ro-{mode}", mode=mode) for mode in modes])
    assert store.account()["requested"] == 2
    put(store, "BatchTrained", trained(1, settled("ro-val")))
    # a manifest may speak of it: it was requested
    assert (store.account()["requested"], store.account()["unrequested"]) == (2, [])


def test_the_account_of_one_run(store: StateStore) -> None:
    put(
        store,
        "RolloutStateChanged",
        *[ended("ro-1"), ended("ro-2", run_id="run-2"), ended("ro-3", run_id="run-2"), ended("ro-4", run_id=None)],
    )
    put(store, "BatchTrained", trained(1, settled("ro-1"), settled("ro-2"), settled("ro-4")))
    everything, one, two = store.account(), store.account("run-1"), store.account("run-2")
    assert (everything["requested"], one["requested"], two["requested"]) == (4, 1, 2)
    assert (two["trained"], two["in_flight"]) == (1, 1)
    assert {run: told["requested"] for run, told in everything["runs"].items()} == {"": 1, "run-1": 1, "run-2": 2}
    assert everything["runs"]["run-2"]["trained"] == two["trained"]
    assert set(one["runs"]) == {"run-1"}
    assert store.account("run-none")["requested"] == 0


def test_what_was_trained_twice_is_listed(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"), ended("ro-2"))
    put(store, "BatchTrained", trained(1, settled("ro-1"), settled("ro-2")), trained(2, settled("ro-1")))
    account = store.account("run-1")
    assert (account["balanced"], account["trained_twice"], account["trained"]) == (False, ["ro-1"], 2)
    # the step made again without it settles the matter
    put(store, "BatchTrained", trained(2, settled("ro-2", "dropped", "late"), ended_at_us=START_US + 9), offset=2)
    account = store.account("run-1")
    assert (account["balanced"], account["trained_twice"]) == (True, [])


def test_trained_by_two_learners_is_not_trained_twice(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"))
    put(store, "BatchTrained", trained(1, settled("ro-1")), trained(2, settled("ro-1"), learner_id="l2"))
    account = store.account()
    assert (account["balanced"], account["trained"], account["trained_twice"]) == (True, 1, [])


def test_what_nobody_requested_is_listed_until_it_was(store: StateStore) -> None:
    put(store, "BatchTrained", trained(1, settled("ro-1"), settled("ro-2")))
    account = store.account()
    assert (account["unrequested"], account["balanced"], account["requested"]) == (["ro-1", "ro-2"], False, 0)
    put(store, "RolloutStateChanged", ended("ro-1"))
    assert store.account()["unrequested"] == ["ro-2"]
    put(store, "RolloutStateChanged", ended("ro-2", run_id="run-2"), offset=1)
    assert (store.account()["unrequested"], store.account()["balanced"]) == ([], True)


def test_what_nobody_requested_belongs_to_the_run_of_its_manifest(store: StateStore) -> None:
    put(store, "BatchTrained", trained(1, settled("ro-1")), trained(2, settled("ro-2"), run_id="run-2"))
    assert store.account("run-1")["unrequested"] == ["ro-1"]
    assert store.account("run-2")["unrequested"] == ["ro-2"]
    assert store.account()["unrequested"] == ["ro-1", "ro-2"]
    assert store.account("run-3")["unrequested"] == []


def test_a_manifest_read_again_does_not_train_twice(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"))
    for offset in range(3):
        put(store, "BatchTrained", trained(1, settled("ro-1"), settled("ro-1")), offset=offset)
    account = store.account()
    assert (account["trained"], account["trained_twice"], account["balanced"]) == (1, [], True)


# counts


def test_counts_of_an_empty_store(store: StateStore) -> None:
    names = {"rollouts", "attempts", "spans", "triplets", "resources", "workers", "batches", "rejects"}
    assert store.counts() == dict.fromkeys(names, 0)


def test_counts_of_everything(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1", number=3), rollout("ro-2"), ended("ro-3"))
    put(store, "SpanRecorded", span("ro-1", "a"), span("ro-1", "b"), span("ro-2", "a"), span("ro-1", "a"))
    put(store, "TripletsJoined", joined("ro-1"), joined("ro-1", 1))
    put(store, "ResourcesPublished", published(1), published(2), published(1, resources_id="rs-2"))
    put(store, "WorkerHeartbeat", beat(1), beat(2), beat(1, worker_id="w2"))
    put(store, "BatchTrained", trained(1), trained(2), trained(1))
    put(store, "RecordRejected", rejected(1), rejected(1), rejected(1, "other"), rejected(2))
    assert store.counts() == {
        "rollouts": 3, "attempts": 4, "spans": 3, "triplets": 1, "resources": 3, "workers": 2, "batches": 2,
        "rejects": 3,
    }  # fmt: skip


def test_counts_follow_replacements_and_not_repetitions(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1", 1, number=1))
    put(store, "RolloutStateChanged", ended("ro-1", 2, number=2), ended("ro-1", 1, number=1), offset=1)
    put(store, "SpanRecorded", *[span("ro-1", f"s{n % 10}") for n in range(100)])
    counts = store.counts()
    assert (counts["rollouts"], counts["attempts"], counts["spans"]) == (1, 2, 10)
