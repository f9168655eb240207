"""What every state store must do. Runs once for each store of ``conftest.FACTORIES``."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agl_stream.errors import EngineUnreachable, UsageError
from agl_stream.schemas.events import EVENT_TYPES
from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.store import Condition, Query, StateStore, wait_applied

from ..makers import START_US, Placed, ended, llm_call, make, place, rollout, span
from .conftest import OpenStore


def put(store: StateStore, event_type: str, *events: dict[str, Any], partition: int = 0, offset: int = 0) -> None:
    store.apply([place(event_type, event, partition, offset + n) for n, event in enumerate(events)])


# a rollout


def test_a_rollout_is_its_latest_state(store: StateStore) -> None:
    assert store.get_rollout("ro-1") is None
    final = ended("ro-1", version=3, reward=0.5, input='{"question": "ü"}', metadata='{"a": 1}')
    put(store, "RolloutStateChanged", rollout("ro-1", 1), final, rollout("ro-1", 2, "running"))
    assert store.get_rollout("ro-1") == final
    assert store.get_rollouts(["ro-1", "ro-none"]) == {"ro-1": final}


def test_an_equal_version_changes_nothing(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1", 2, "running"))
    put(store, "RolloutStateChanged", rollout("ro-1", 2, "failed"))
    found = store.get_rollout("ro-1")
    assert found is not None and found["status"] == "running"


def test_rollouts_are_counted_by_status(store: StateStore) -> None:
    put(store, "RolloutStateChanged", rollout("ro-1"), rollout("ro-2"), rollout("ro-3", status="running", mode="val"))
    put(store, "RolloutStateChanged", rollout("ro-4", run_id="other"))
    assert store.count_rollouts_by_status() == {"queuing": 3, "running": 1}
    assert store.count_rollouts_by_status(run_id="run-1") == {"queuing": 2, "running": 1}
    assert store.count_rollouts_by_status(run_id="run-1", mode="val") == {"running": 1}


# queries


@pytest.fixture
def many(store: StateStore) -> StateStore:
    statuses = ["queuing", "running", "succeeded", "failed"]
    events = [
        rollout(
            f"ro-{n:02d}",
            status=statuses[n % 4],
            run_id=None if n % 5 == 0 else f"run-{n % 2}",
            requested_at_us=START_US + (n * 7) % 20,
        )
        for n in range(20)
    ]
    put(store, "RolloutStateChanged", *events)
    return store


def ids(found: Any) -> list[str]:
    return [item["rollout_id"] for item in found]


def test_default_order_is_the_order_of_request(many: StateStore) -> None:
    page = many.query_rollouts()
    times = [item["requested_at_us"] for item in page]
    assert len(page) == page.total == 20
    assert times == sorted(times)


def test_exact_within_and_contains(many: StateStore) -> None:
    assert ids(many.query_rollouts(Query((Condition("rollout_id", exact="ro-07"),)))) == ["ro-07"]
    within = many.query_rollouts(Query((Condition("status", within=["failed", "running"]),), sort_by="rollout_id"))
    assert ids(within) == [f"ro-{n:02d}" for n in range(20) if n % 4 in (1, 3)]
    assert ids(many.query_rollouts(Query((Condition("rollout_id", contains="-1"),), sort_by="rollout_id"))) == [
        f"ro-1{n}" for n in range(10)
    ]
    assert many.query_rollouts(Query((Condition("rollout_id", contains="RO"),))).total == 0
    assert many.query_rollouts(Query((Condition("status", within=[]),))).total == 0
    assert ids(many.query_rollouts(Query((Condition("run_id", exact=None),), sort_by="rollout_id"))) == [
        "ro-00", "ro-05", "ro-10", "ro-15",
    ]  # fmt: skip


def test_and_or_and_must(many: StateStore) -> None:
    two = (Condition("status", exact="failed"), Condition("rollout_id", contains="-0"))
    every, either = many.query_rollouts(Query(two)), many.query_rollouts(Query(two, logic="or"))
    assert ids(every) == ["ro-03", "ro-07"]
    assert set(ids(either)) == {f"ro-{n:02d}" for n in range(20) if n % 4 == 3 or n < 10}
    narrowed = many.query_rollouts(Query(two, logic="or", must=(Condition("run_id", exact="run-1"),)))
    assert set(ids(narrowed)) == {i for i in ids(either) if int(i[3:]) % 2 and int(i[3:]) % 5}
    assert many.query_rollouts(Query(logic="or")).total == 20


def test_pages_cover_everything_once_whatever_the_sorting(many: StateStore) -> None:
    for sort_by in ("status", "run_id", "requested_at_us", None):
        for order in ("asc", "desc"):
            whole = ids(many.query_rollouts(Query(sort_by=sort_by, sort_order=order)))  # type: ignore[arg-type]
            paged: list[str] = []
            for start in range(0, 28, 7):
                page = many.query_rollouts(Query(sort_by=sort_by, sort_order=order, limit=7, offset=start))  # type: ignore[arg-type]
                assert (page.total, page.limit, page.offset) == (20, 7, start)
                paged += ids(page)
            assert paged == whole and len(set(paged)) == 20
    assert many.query_rollouts(Query(limit=0)).items == []
    assert many.query_rollouts(Query(limit=0)).total == 20


def test_null_sorts_before_everything(many: StateStore) -> None:
    ascending = [item["run_id"] for item in many.query_rollouts(Query(sort_by="run_id"))]
    assert ascending[:4] == [None] * 4 and ascending[4:] == sorted(ascending[4:])


def test_a_field_that_cannot_be_asked_is_named(store: StateStore) -> None:
    for query in (Query((Condition("event; DROP TABLE rollouts", exact=1),)), Query(sort_by="input")):
        with pytest.raises(UsageError, match="rollouts cannot be asked by"):
            store.query_rollouts(query)
    with pytest.raises(UsageError, match="sort_order"):
        store.query_rollouts(Query(sort_order="up"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="logic"):
        store.query_rollouts(Query((Condition("status", exact="x"),), logic="xor"))  # type: ignore[arg-type]


def test_membership_takes_many_values(many: StateStore) -> None:
    wanted = [f"ro-{n:02d}" for n in range(50_000)]
    assert many.query_rollouts(Query((Condition("rollout_id", within=wanted),))).total == 20


# spans


def test_a_span_comes_back_whole(store: StateStore) -> None:
    event = llm_call(
        "ro-1", "s1", 7, [1, 2, 3], [4, 5], producer={"name": "gateway", "instance": "i", "version": "0"},
        request='{"messages": []}', response='{"id": "ü"}', reward=0.25, parent_id="s0", trace_id="t",
        payload_ref={"uri": "ab/cd", "sha256": "ef", "length": 9}, attributes='{"a": "b"}', events="[{}]",
    )  # fmt: skip
    put(store, "SpanRecorded", event, partition=3, offset=41)
    assert store.get_spans("ro-1") == [event | {"source_partition": 3, "source_offset": 41}]


def test_the_first_span_of_a_key_stays(store: StateStore) -> None:
    first, second = span("ro-1", "s1", name="first"), span("ro-1", "s1", name="second")
    put(store, "SpanRecorded", first)
    put(store, "SpanRecorded", second, span("ro-1", "s1", number=2, name="other attempt"), offset=1)
    assert {item["name"] for item in store.get_spans("ro-1")} == {"first", "other attempt"}


def test_spans_are_ordered_and_filtered(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        span("ro-1", "b", 2, name="tool.call", started_at_us=START_US + 5),
        span("ro-1", "a", 2, name="tool.answer", started_at_us=START_US + 1),
        span("ro-1", "c", 1, name="model"),
        span("ro-1", "d", 9, number=2, name="tool.late"),
        span("ro-2", "a", 0),
    )
    assert [item["span_id"] for item in store.get_spans("ro-1")] == ["c", "a", "b", "d"]
    assert [item["span_id"] for item in store.get_spans("ro-1", attempt_id("ro-1", 2))] == ["d"]
    tools = store.query_spans("ro-1", None, Query((Condition("name", contains="tool."),), limit=2, sort_order="desc"))
    assert ([item["span_id"] for item in tools], tools.total) == (["d", "b"], 3)
    assert store.get_spans("ro-none") == []


def test_last_activity_is_the_latest_span(store: StateStore) -> None:
    put(
        store,
        "SpanRecorded",
        span("ro-1", "a", occurred_at_us=START_US + 10),
        span("ro-1", "b", occurred_at_us=START_US + 30),
        span("ro-1", "c", occurred_at_us=START_US + 20),
    )
    put(store, "SpanRecorded", span("ro-1", "d", occurred_at_us=START_US + 5), offset=3)
    attempt = attempt_id("ro-1", 1)
    assert store.last_activity([attempt, "at-none"]) == {attempt: START_US + 30}


# triplets


def joined(rollout_id: str, revision: int = 0, calls: int = 2, **given: Any) -> dict[str, Any]:
    triplets = [
        {
            "span_id": f"s{n}", "sequence_id": n, "prompt_token_ids": bytes(range(8)), "response_token_ids": bytes(4),
            "response_logprobs": None if n else b"\0\0\0\0", "reward": None, "resources_version": 2,
            "finish_reason": "stop", "metadata": "{}",
        }
        for n in range(calls)
    ]  # fmt: skip
    given = {"mode": "train", "group_id": "g", "reward": 1.0, "spans_total": calls, "adapter": "llm_calls"} | given
    return make("TripletsJoined", rollout_id=rollout_id, revision=revision, triplets=triplets, **given)


def test_triplets_come_back_whole(store: StateStore) -> None:
    event = joined("ro-1", reward=0.5)
    put(store, "TripletsJoined", event, joined("ro-2", calls=0, reason_code="no_reward"))
    assert store.get_triplets("ro-1") == event
    empty = store.get_triplets("ro-2")
    assert empty is not None and (empty["triplets"], empty["reason_code"]) == ([], "no_reward")
    assert store.get_triplets("ro-3") is None


def test_a_greater_revision_replaces_the_calls_too(store: StateStore) -> None:
    put(store, "TripletsJoined", joined("ro-1", 0, calls=3), joined("ro-1", 2, calls=1), joined("ro-1", 1, calls=2))
    assert store.get_triplets("ro-1") == joined("ro-1", 2, calls=1)
    # the same revision made from more spans knew more
    put(store, "TripletsJoined", joined("ro-1", 2, calls=4), joined("ro-1", 2, calls=2))
    assert store.get_triplets("ro-1") == joined("ro-1", 2, calls=4)


# resources, workers, batches, rejects


def test_a_version_published_again_is_the_later_publication(store: StateStore) -> None:
    def published(version: int, at: int, text: str = "{}", resources_id: str = "rs-1") -> dict[str, Any]:
        return make(
            "ResourcesPublished", resources_id=resources_id, version=version, occurred_at_us=at, resources=text
        )  # fmt: skip

    assert store.latest_resources() is None
    put(store, "ResourcesPublished", published(2, 200), published(1, 100), published(2, 300, '{"x": 1}'))
    assert store.get_resources("rs-1", 2) == published(2, 300, '{"x": 1}')
    assert store.get_resources("rs-1", 3) is None
    assert store.latest_resources("rs-1") == published(2, 300, '{"x": 1}')
    put(store, "ResourcesPublished", published(1, 350, resources_id="rs-2"))
    latest = store.latest_resources()
    assert latest is not None and latest["resources_id"] == "rs-2"
    found = store.query_resources(Query((Condition("resources_id", contains="rs"),), sort_order="desc"))
    assert [(item["resources_id"], item["version"]) for item in found] == [("rs-2", 1), ("rs-1", 2), ("rs-1", 1)]


def test_a_worker_is_its_latest_heartbeat(store: StateStore) -> None:
    def beat(at: int, status: str, worker: str = "w1") -> dict[str, Any]:
        return make("WorkerHeartbeat", worker_id=worker, status=status, role="runner", occurred_at_us=at)

    put(store, "WorkerHeartbeat", beat(20, "busy"), beat(10, "idle"), beat(5, "idle", "w0"))
    assert [(item["worker_id"], item["status"]) for item in store.workers()] == [("w0", "idle"), ("w1", "busy")]
    assert store.query_workers(Query((Condition("status", within=["busy"]),))).total == 1


def test_batches_by_learner_and_step(store: StateStore) -> None:
    def trained(step: int, learner: str = "l1", **given: Any) -> dict[str, Any]:
        return make("BatchTrained", learner_id=learner, step=step, **given)

    put(store, "BatchTrained", trained(2), trained(1), trained(1, "l0"))
    assert [(item["learner_id"], item["step"]) for item in store.batches()] == [("l0", 1), ("l1", 1), ("l1", 2)]
    assert [item["step"] for item in store.batches("l1")] == [1, 2]
    # a step trained again after its checkpoint was lost: the later one is the learner's history
    again = trained(2, ended_at_us=9, manifest_hash="b")
    put(store, "BatchTrained", again, trained(2, ended_at_us=3, manifest_hash="c"))
    assert store.batches("l1")[1] == again


def test_a_reject_counts_once_for_its_place_and_reason(store: StateStore) -> None:
    def rejected(offset: int, reason: str = "undecodable", by: str = "sink", **given: Any) -> dict[str, Any]:
        return make(
            "RecordRejected", source_topic="spans", source_partition=1, source_offset=offset, reason_code=reason,
            detail="d", rejected_by=by, payload=b"\0\xff", payload_length=2, **given,
        )  # fmt: skip

    put(store, "RecordRejected", rejected(7), rejected(7, by="joiner"), rejected(8), rejected(8, "nan_logprob"))
    put(store, "RecordRejected", rejected(-1, "bad_json", event_id="a"), rejected(-1, "bad_json", event_id="b"))
    assert store.rejects_by_reason() == {"undecodable": 2, "nan_logprob": 1, "bad_json": 2}
    page = store.query_rejects(Query((Condition("reason_code", exact="undecodable"),)))
    assert [item["source_offset"] for item in page] == [7, 8]
    # at the same microsecond the names decide, in any order of arrival
    assert (page.items[0]["rejected_by"], page.items[0]["payload"]) == ("sink", b"\0\xff")


# the account


def settled(step: int, *told: tuple[str, str, str | None], learner: str = "l1", **given: Any) -> dict[str, Any]:
    rollouts = [
        {"rollout_id": rollout_id, "attempt_id": "a", "revision": 0, "group_id": "g", "content_hash": "h",
         "outcome": outcome, "reason_code": reason, "reward": None, "rows": 1}
        for rollout_id, outcome, reason in told
    ]  # fmt: skip
    return make("BatchTrained", learner_id=learner, step=step, run_id="run-1", rollouts=rollouts, **given)


def test_the_account_balances(store: StateStore) -> None:
    put(
        store,
        "RolloutStateChanged",
        *[ended(f"ro-{n}") for n in range(4)],
        ended("ro-4", status="failed", reason_code="agent_error"),
        ended("ro-5", status="cancelled"),
        rollout("ro-6", status="running"),
        rollout("ro-7", mode="val"),
        rollout("ro-8", run_id="run-2"),
        rollout("ro-9", run_id="run-2", mode="unknown"),
        rollout("ro-10", mode="test"),
    )
    put(store, "BatchTrained", settled(1, ("ro-0", "trained", None), ("ro-1", "dropped", "no_reward")))
    put(store, "BatchTrained", settled(2, ("ro-2", "trained", None)), settled(2, ("ro-2", "trained", None)), offset=1)
    account = store.account()
    runs = account.pop("runs")
    assert account == {
        "requested": 9, "trained": 2, "dropped": {"no_reward": 1}, "failed": {"agent_error": 1}, "cancelled": 1,
        "in_flight": 4, "trained_twice": [], "unrequested": [], "balanced": True,
    }  # fmt: skip
    assert (runs["run-1"]["requested"], runs["run-2"]["in_flight"]) == (7, 2)
    assert store.account("run-1")["requested"] == 7
    assert store.account("run-none")["requested"] == 0


def test_the_account_shows_what_was_trained_twice_or_never_requested(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1"))
    put(store, "BatchTrained", settled(1, ("ro-1", "trained", None)), settled(2, ("ro-1", "trained", None)))
    account = store.account("run-1")
    assert (account["balanced"], account["trained_twice"], account["trained"]) == (False, ["ro-1"], 1)
    # the step made again without that rollout settles the matter
    put(store, "BatchTrained", settled(2, ("ro-9", "trained", None), ended_at_us=5), offset=2)
    account = store.account()
    assert (account["trained_twice"], account["unrequested"]) == ([], ["ro-9"])
    assert account["balanced"] is False


# offsets


def test_applied_offsets_follow_the_records(store: StateStore) -> None:
    assert store.applied_offset("spans", 0) is None
    store.apply([])
    store.apply([Placed("spans", 0, n, span("ro-1", f"s{n}")) for n in (4, 5)] + [Placed("attempts", 2, 9, {})])
    assert store.applied_offset("spans", 0) == 6
    assert store.applied_offsets() == {("spans", 0): 6, ("attempts", 2): 10}
    # what is applied again is still visible
    store.apply([Placed("spans", 0, 0, span("ro-1", "s0"))])
    assert store.applied_offset("spans", 0) == 6
    store.restart("spans", 0)
    assert store.applied_offset("spans", 0) is None
    store.apply([Placed("spans", 0, 0, span("ro-1", "s0"))])
    assert store.applied_offsets() == {("spans", 0): 1, ("attempts", 2): 10}


def test_a_failing_batch_leaves_nothing_behind(store: StateStore) -> None:
    broken = rollout("ro-2")
    del broken["status"]
    with pytest.raises(KeyError):
        store.apply([place("SpanRecorded", span("ro-1", "s")), place("RolloutStateChanged", broken)])
    assert store.get_spans("ro-1") == []
    assert store.applied_offsets() == {}


def test_a_writer_can_wait_for_its_write(store: StateStore) -> None:
    with pytest.raises(EngineUnreachable, match="offset 3 of spans partition 0"):
        wait_applied(store, "spans", 0, 3, timeout_seconds=0.05)
    later = threading.Timer(0.05, lambda: store.apply([Placed("spans", 0, 3, span("ro-1", "s"))]))
    later.start()
    wait_applied(store, "spans", 0, 3, timeout_seconds=10)
    assert len(store.get_spans("ro-1")) == 1
    later.join()


def test_counts(store: StateStore) -> None:
    put(store, "RolloutStateChanged", ended("ro-1", number=3), rollout("ro-2"))
    put(store, "SpanRecorded", span("ro-1", "a"), span("ro-1", "b"))
    counts = store.counts()
    assert (counts["rollouts"], counts["attempts"], counts["spans"], counts["triplets"]) == (2, 3, 2, 0)


# convergence


def histories() -> list[tuple[str, dict[str, Any]]]:
    """Events of every kind the store keeps, with versions that overtake one another."""
    told: list[tuple[str, dict[str, Any]]] = []
    for n in range(3):
        rollout_id = f"ro-{n}"
        told += [("RolloutStateChanged", rollout(rollout_id, v, s)) for v, s in enumerate(("queuing", "running"), 1)]
        told.append(("RolloutStateChanged", ended(rollout_id, 3, reward=float(n))))
        told += [("SpanRecorded", llm_call(rollout_id, f"s{k}", k, [k], [k, n])) for k in range(3)]
        told += [("TripletsJoined", joined(rollout_id, revision, calls=revision + 1)) for revision in range(3)]
        told += [("WorkerHeartbeat", make("WorkerHeartbeat", worker_id="w", occurred_at_us=n + 1))]
        told += [("ResourcesPublished", make("ResourcesPublished", resources_id="rs", version=n + 1))]
        told += [("BatchTrained", settled(n // 2, (rollout_id, "trained", None), ended_at_us=n, manifest_hash=str(n)))]
        told += [("RecordRejected", make("RecordRejected", source_topic="spans", source_offset=n, reason_code="r"))]
    assert {event_type for event_type, _ in told} <= set(EVENT_TYPES)
    return told


def picture(store: StateStore) -> Any:
    rollouts = store.query_rollouts().items
    spans = [
        {k: v for k, v in item.items() if not k.startswith("source_")}
        for r in rollouts for item in store.get_spans(r["rollout_id"])
    ]  # fmt: skip
    return (
        rollouts, spans, [store.get_triplets(r["rollout_id"]) for r in rollouts], store.workers(), store.batches(),
        store.query_resources().items, store.query_rejects().items, store.account(), store.counts(),
        store.last_activity([attempt_id(r["rollout_id"], 1) for r in rollouts]),
    )  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 40))
def test_any_order_and_repetition_leads_to_the_same_state(open_fresh: OpenStore, seed: int, batch: int) -> None:
    told = histories()
    expected = open_fresh()
    for event_type, event in told:
        put(expected, event_type, event)
    order = random.Random(seed)
    shuffled = told + order.sample(told, len(told) // 2)
    order.shuffle(shuffled)
    store = open_fresh()
    for start in range(0, len(shuffled), batch):
        store.apply([place(event_type, event) for event_type, event in shuffled[start : start + batch]])
    assert picture(store) == picture(expected)
