"""Manifests of training steps: by learner and step, the later manifest of a step made again."""

from __future__ import annotations

from agl_stream.streams.store import StateStore
from tests.conformance.store.events import START_US, ended, put, rollout, settled, trained


def test_a_manifest_comes_back_whole(store: StateStore) -> None:
    event = trained(
        2**40, settled("ro-1"), settled("ro-2", "dropped", "no_reward"), resources_id="rs", version_in=1, version_out=2,
        input_offsets=[{"topic": "triplets", "partition": 0, "next_offset": 2**40}], rows=17, content_hash="c",
        previous_hash="p", manifest_hash="m", adapter="llm_calls", metrics='{"loss": 0.5}', started_at_us=START_US - 5,
        producer={"name": "trainer", "instance": "i", "version": "0"},
    )  # fmt: skip
    put(store, "BatchTrained", event)
    assert store.batches() == [event]
    assert store.batches("l1") == [event]
    assert store.batches("l2") == []


def test_manifests_are_in_order_of_learner_and_step(store: StateStore) -> None:
    assert store.batches() == []
    for offset, (learner_id, step) in enumerate([("l2", 1), ("l1", 10), ("l1", 9), ("l1", 1), ("l0", 2), ("l1", 0)]):
        put(store, "BatchTrained", trained(step, learner_id=learner_id), offset=offset)
    found = [(event["learner_id"], event["step"]) for event in store.batches()]
    assert found == [("l0", 2), ("l1", 0), ("l1", 1), ("l1", 9), ("l1", 10), ("l2", 1)]
    assert [event["step"] for event in store.batches("l1")] == [0, 1, 9, 10]


def test_a_step_made_again_is_the_later_one(store: StateStore) -> None:
    """After a checkpoint was lost, the learner's history goes on from the step made again."""
    first, again = trained(2, settled("ro-1")), trained(2, settled("ro-2"), ended_at_us=START_US + 9)
    put(store, "BatchTrained", first, again)
    assert store.batches() == [again]
    put(store, "BatchTrained", first, offset=2)
    assert store.batches() == [again]
    assert store.counts()["batches"] == 1


def test_ended_at_the_same_time_the_greater_hash_is_the_later_one(store: StateStore) -> None:
    low, high = trained(1, manifest_hash="aa"), trained(1, manifest_hash="bb")
    put(store, "BatchTrained", high)
    put(store, "BatchTrained", low, offset=1)
    assert store.batches() == [high]
    put(store, "BatchTrained", low, high, low, offset=2)
    assert store.batches() == [high]


def test_the_same_step_of_two_learners(store: StateStore) -> None:
    one, two = trained(1, settled("ro-1")), trained(1, settled("ro-1"), learner_id="l2", ended_at_us=START_US + 9)
    put(store, "BatchTrained", one, two)
    assert store.batches() == [one, two]


def test_a_manifest_of_many_rollouts(store: StateStore) -> None:
    names = [f"ro-{n}" for n in range(2000)]
    put(store, "RolloutStateChanged", *[ended(name) for name in names])
    event = trained(1, *[settled(name) for name in names])
    put(store, "BatchTrained", event)
    assert store.batches() == [event]
    assert store.account("run-1")["trained"] == 2000


def test_a_manifest_of_no_rollouts_and_no_run(store: StateStore) -> None:
    event = trained(1, run_id=None, learner_id="")
    put(store, "BatchTrained", event)
    assert store.batches("") == store.batches() == [event]
    assert store.account()["balanced"] is True


def test_a_step_made_again_unsays_what_it_said_of_rollouts(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"), ended("ro-2"), rollout("ro-3"))
    put(store, "BatchTrained", trained(1, settled("ro-1"), settled("ro-2", "dropped", "no_reward")))
    assert store.account("run-1")["trained"] == 1
    put(store, "BatchTrained", trained(1, settled("ro-2"), ended_at_us=START_US + 1), offset=1)
    account = store.account("run-1")
    assert (account["trained"], account["dropped"], account["in_flight"]) == (1, {}, 2)
    assert (account["trained_twice"], account["balanced"]) == ([], True)
