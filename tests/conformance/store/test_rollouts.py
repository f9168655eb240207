"""A rollout in the store is its latest state, whatever came before, again or late."""

from __future__ import annotations

from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.store import Condition, Query, StateStore, latest_attempt
from tests.conformance.store.events import START_US, ended, ids, put, rollout
from tests.streams.makers import attempt_state


def test_what_nobody_wrote_is_none(store: StateStore) -> None:
    assert store.get_rollout("ro-1") is None
    assert store.query_rollouts().items == []
    assert store.query_rollouts().total == 0


def test_it_comes_back_whole(store: StateStore) -> None:
    event = ended(
        "ro-1", 7, "failed", number=2, reward=-0.125, attempt_reason="agent_error", reason_code="agent_error",
        input='{"question": "6 × 7"}', input_ref={"uri": "ab/cd", "sha256": "ef", "length": 2**40},
        resources_id="rs-1", resources_version=2**31 - 1, group_id="g", group_size=8, metadata='{"a": {"b": [1]}}',
        config={"timeout_seconds": 1.5, "unresponsive_seconds": None, "max_attempts": 3,
                "retry_condition": ["timeout", "failed"], "backoff_seconds": 0.1},
        producer={"name": "lifecycle", "instance": "host-1", "version": "0.1.0"},
    )  # fmt: skip
    put(store, "RolloutStateChanged", event)
    assert store.get_rollout("ro-1") == event
    assert store.query_rollouts().items == [event]


def test_a_greater_version_replaces_a_smaller_one(store: StateStore) -> None:
    for version, status in enumerate(("queuing", "preparing", "running"), 1):
        put(store, "RolloutStateChanged", rollout("ro-1", version, status), offset=version)
        found = store.get_rollout("ro-1")
        assert found is not None and found["status"] == status


def test_a_smaller_version_that_comes_late_changes_nothing(store: StateStore) -> None:
    final = ended("ro-1", 9, reward=1.0)
    put(store, "RolloutStateChanged", final)
    for version in (1, 8):
        put(store, "RolloutStateChanged", rollout("ro-1", version, "running"), offset=version)
    assert store.get_rollout("ro-1") == final
    assert store.query_rollouts(Query((Condition("status", exact="running"),))).total == 0


def test_versions_out_of_order_within_one_batch(store: StateStore) -> None:
    final = ended("ro-1", 3)
    put(store, "RolloutStateChanged", rollout("ro-1", 2, "running"), final, rollout("ro-1", 1), rollout("ro-2", 1))
    assert store.get_rollout("ro-1") == final
    assert store.count_rollouts_by_status() == {"succeeded": 1, "queuing": 1}


def test_the_same_event_again_changes_nothing(store: StateStore) -> None:
    event = rollout("ro-1", 2, "running")
    for offset in range(3):
        put(store, "RolloutStateChanged", event, event, offset=2 * offset)
    assert store.query_rollouts().items == [event]
    assert store.counts()["rollouts"] == 1


def test_versions_are_compared_as_numbers(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1", 9, "running"))
    put(store, "RolloutStateChanged", rollout("ro-1", 10, "succeeded"), offset=1)
    put(store, "RolloutStateChanged", rollout("ro-1", 2**40, "failed"), offset=2)
    put(store, "RolloutStateChanged", rollout("ro-1", 2**40 - 1, "running"), offset=3)
    found = store.get_rollout("ro-1")
    assert found is not None and (found["version"], found["status"]) == (2**40, "failed")


def test_fields_that_a_later_version_lacks_are_gone(store: StateStore) -> None:
    first = ended("ro-1", 1, group_id="g", resources_id="rs", resources_version=3, reason_code="x")
    put(store, "RolloutStateChanged", first)
    second = rollout("ro-1", 2)
    put(store, "RolloutStateChanged", second, offset=1)
    assert store.get_rollout("ro-1") == second
    for name in ("group_id", "resources_id", "resources_version", "reason_code", "ended_at_us", "attempt_id"):
        assert store.query_rollouts(Query((Condition(name, exact=None),))).total == 1, name


def test_several_at_once_are_the_known_ones(store: StateStore) -> None:
    first, second = rollout("ro-1"), rollout("ro-2")
    put(store, "RolloutStateChanged", first, second, rollout("ro-3"))
    assert store.get_rollouts(["ro-2", "ro-none", "ro-1", "ro-2"]) == {"ro-1": first, "ro-2": second}
    assert store.get_rollouts(name for name in ("ro-1",)) == {"ro-1": first}
    assert store.get_rollouts([]) == {}


def test_any_number_at_once(store: StateStore) -> None:
    put(store, "RolloutStateChanged", *[rollout(f"ro-{n}") for n in range(0, 3000, 3)])
    found = store.get_rollouts(f"ro-{n}" for n in range(3000))
    assert set(found) == {f"ro-{n}" for n in range(0, 3000, 3)}
    assert all(event["rollout_id"] == name for name, event in found.items())


def test_many_attempts_and_the_greatest_number_is_the_latest(store: StateStore) -> None:
    attempts = [attempt_state("ro-1", n, worker_id=f"w{n}") for n in range(1, 201)]
    event = rollout("ro-1", attempts=[*attempts[100:], *attempts[:100]])
    put(store, "RolloutStateChanged", event)
    found = store.get_rollout("ro-1")
    assert found == event
    latest = latest_attempt(found)
    assert latest is not None and latest["attempt_number"] == 200
    for name, value in (("attempt_number", 200), ("worker_id", "w200"), ("attempt_id", attempt_id("ro-1", 200))):
        assert store.query_rollouts(Query((Condition(name, exact=value),))).total == 1, name
    assert store.query_rollouts(Query((Condition("worker_id", exact="w100"),))).total == 0


def test_without_attempts_there_is_no_latest_one(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1"))
    for name in ("attempt_id", "attempt_number", "worker_id"):
        assert store.query_rollouts(Query((Condition(name, exact=None),))).total == 1, name


def test_an_input_of_a_megabyte(store: StateStore) -> None:
    event = rollout("ro-1", input='"' + "ß" * 500_000 + '"')
    put(store, "RolloutStateChanged", event)
    assert store.get_rollout("ro-1") == event


def test_ids_of_any_text(store: StateStore) -> None:
    names = ["rö-Ünïcode-日本語", "🙂" * 50, "with space", "quote'\"; --", "a/b\\c%_*", "tab\tnew\nline", "nul\0inside"]
    events = [rollout(name, group_id=name) for name in names]
    put(store, "RolloutStateChanged", *events)
    assert store.get_rollouts(names) == {event["rollout_id"]: event for event in events}
    for name in names:
        assert ids(store.query_rollouts(Query((Condition("group_id", exact=name),)))) == [name]


def test_composed_and_decomposed_letters_are_two_ids(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("\u00fc", status="running"), rollout("u\u0308", status="queuing"))
    composed, decomposed = store.get_rollout("\u00fc"), store.get_rollout("u\u0308")
    assert composed is not None and decomposed is not None
    assert (composed["status"], decomposed["status"]) == ("running", "queuing")
    assert store.get_rollout("Ü") is None


def test_an_empty_id_is_an_id(store: StateStore) -> None:
    """Foreign writers may leave it empty; a store that cannot take it would stop the sink for good."""
    put(store, "RolloutStateChanged", rollout("", status="running"), rollout("ro-1"))
    found = store.get_rollout("")
    assert found is not None and found["status"] == "running"
    assert ids(store.query_rollouts(Query(sort_by="rollout_id"))) == ["", "ro-1"]


def test_an_empty_text_is_not_null(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1", run_id=""), rollout("ro-2", run_id=None))
    assert ids(store.query_rollouts(Query((Condition("run_id", exact=""),)))) == ["ro-1"]
    assert ids(store.query_rollouts(Query((Condition("run_id", exact=None),)))) == ["ro-2"]
    assert store.count_rollouts_by_status(run_id="") == {"queuing": 1}
    assert store.count_rollouts_by_status(run_id=None) == {"queuing": 2}


# counts by status


def test_rollouts_are_counted_by_status_run_and_mode(store: StateStore) -> None:
    assert store.count_rollouts_by_status() == {}
    put(
        store,
        "RolloutStateChanged",
        *[rollout("ro-1"), rollout("ro-2"), rollout("ro-3", status="running", mode="val")],
        *[rollout("ro-4", run_id="run-2"), rollout("ro-5", status="failed", mode="test", run_id="run-2")],
    )
    assert store.count_rollouts_by_status() == {"queuing": 3, "running": 1, "failed": 1}
    assert store.count_rollouts_by_status(run_id="run-1") == {"queuing": 2, "running": 1}
    assert store.count_rollouts_by_status(mode="train") == {"queuing": 3}
    assert store.count_rollouts_by_status(run_id="run-2", mode="test") == {"failed": 1}
    assert store.count_rollouts_by_status(run_id="run-none") == {}


def test_a_rollout_that_moves_on_is_counted_once(store: StateStore) -> None:
    for version, status in enumerate(("queuing", "preparing", "running", "requeuing", "running", "succeeded"), 1):
        put(store, "RolloutStateChanged", rollout("ro-1", version, status), offset=version)
        assert store.count_rollouts_by_status() == {status: 1}


def test_what_a_query_finds_follows_the_state(store: StateStore) -> None:
    """An index must not remember what a rollout was."""
    running = rollout("ro-1", 2, "running", attempts=[attempt_state("ro-1", 1, worker_id="w1", status="running")])
    over = ended("ro-1", 3, "failed", number=2, reason_code="timeout")
    for event in (rollout("ro-1", 1), running, over):
        put(store, "RolloutStateChanged", event, offset=event["version"])
        now = latest_attempt(event) or {"attempt_id": None, "worker_id": None}
        for status in ("queuing", "running", "failed"):
            page = store.query_rollouts(Query((Condition("status", exact=status),)))
            assert page.items == ([event] if status == event["status"] else [])
        for worker_id in (None, "w1", "runner-1"):
            total = store.query_rollouts(Query(must=(Condition("worker_id", exact=worker_id),), limit=0)).total
            assert total == (worker_id == now["worker_id"])
        for reason_code in (None, "timeout"):
            total = store.query_rollouts(Query((Condition("reason_code", within=[reason_code]),))).total
            assert total == (reason_code == event["reason_code"])
    assert store.query_rollouts(Query((Condition("ended_at_us", exact=START_US + 9),))).total == 1
