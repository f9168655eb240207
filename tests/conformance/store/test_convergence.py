"""However the log is read, the state is the same: in any order that its partitions allow, twice, again from earlier,
compacted, after crashes, by two sinks. The seeds that hypothesis prints make a failure again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.backends import Backend
from tests.conformance.store.course import Log, answers, apply_course, courses, write_log
from tests.conformance.store.events import (
    START_US,
    beat,
    ended,
    place,
    published,
    put,
    rejected,
    rollout,
    trained,
)  # fmt: skip
from tests.conformance.store.model import Model

Fresh = Callable[[], StateStore]
Check = Callable[[int], None]
ForSeeds = Callable[[Check], None]


@pytest.fixture
def for_seeds(backend: Backend) -> ForSeeds:
    """Runs a check with as many seeds as the back end allows; hypothesis prints the one that fails."""

    def run(check: Check) -> None:
        @settings(
            max_examples=int(os.environ.get("AGL_STREAM_TEST_EXAMPLES", backend.examples)),
            deadline=None,
            print_blob=True,
            # a seed does not get simpler by being smaller
            phases=(Phase.reuse, Phase.generate),
        )
        @given(seed=st.integers(0, 2**32))
        def checked(seed: int) -> None:
            check(seed)

        checked()

    return run


@pytest.fixture
def fresh(backend: Backend) -> Any:
    """Opens an empty store, again and again; the one before is closed."""
    databases: list[Any] = []

    def open_fresh() -> StateStore:
        while databases:
            databases.pop().close()
        databases.append(backend.make())
        return databases[-1].open()

    yield open_fresh
    while databases:
        databases.pop().close()


def expected(log: Log) -> dict[str, Any]:
    """From the model, which was told each record once, in order."""
    model = Model()
    for records in log.partitions.values():
        model.apply(records)
    return answers(model, log)


def assert_same(store: StateStore, log: Log, wanted: dict[str, Any]) -> None:
    found = answers(store, log)
    for question, answer in wanted.items():
        assert found[question] == answer, question


def test_the_logs_are_not_dull() -> None:
    """Guards what follows: every kind of event, versions that overtake, repetitions, retries, rejects of two."""
    logs = [write_log(seed) for seed in range(20)]
    records = [record for log in logs for told in log.partitions.values() for record in told]
    assert {record.topic for record in records} == {
        *("rollouts", "spans", "triplets", "resources", "workers", "batches", "rejects")
    }
    statuses = {record.event["status"] for record in records if record.topic == "rollouts"}
    assert statuses >= {"queuing", "preparing", "running", "requeuing", "succeeded", "failed"}
    revisions = [record.event["revision"] for record in records if record.topic == "triplets"]
    assert len(revisions) > 40
    reasons = {record.event["reason_code"] for record in records if record.topic == "rejects"}
    assert len(reasons) > 2
    for log in logs:
        left = sum(map(len, log.compacted().partitions.values()))
        assert left < sum(map(len, log.partitions.values()))


def test_in_any_order_that_the_partitions_allow(fresh: Fresh, for_seeds: ForSeeds) -> None:
    def check(seed: int) -> None:
        log, store = write_log(seed), fresh()
        apply_course(store, log, random.Random(seed), again=False)
        assert_same(store, log, expected(log))

    for_seeds(check)


def test_with_records_again_after_crashes_and_from_paused_sinks(fresh: Fresh, for_seeds: ForSeeds) -> None:
    def check(seed: int) -> None:
        log, store = write_log(seed), fresh()
        apply_course(store, log, random.Random(seed))
        assert_same(store, log, expected(log))

    for_seeds(check)


def test_from_a_compacted_log(fresh: Fresh, for_seeds: ForSeeds) -> None:
    """A store built from what compaction left knows what the one that saw everything knows."""

    def check(seed: int) -> None:
        log, store = write_log(seed), fresh()
        compacted = log.compacted()
        apply_course(store, compacted, random.Random(seed))
        assert_same(store, log, expected(log))

    for_seeds(check)


def test_compacted_while_it_was_read(fresh: Fresh, for_seeds: ForSeeds) -> None:
    """Half of it was applied before compaction; then it is read from the beginning, as for a lost commit."""

    def check(seed: int) -> None:
        log, store, luck = write_log(seed), fresh(), random.Random(seed)
        batches = list(courses(log, luck))
        for batch in batches[: luck.randrange(len(batches) + 1)]:
            store.apply(batch)
        apply_course(store, log.compacted(), luck)
        assert_same(store, log, expected(log))

    for_seeds(check)


def test_data_without_its_offset(fresh: Fresh, for_seeds: ForSeeds) -> None:
    """As after a crash between the two: the marks are gone, the data is there, and everything comes again."""

    def check(seed: int) -> None:
        log, store, luck = write_log(seed), fresh(), random.Random(seed)
        batches = list(courses(log, luck))
        for batch in batches[: luck.randrange(1, len(batches) + 1)]:
            store.apply(batch)
        for topic, partition in luck.sample(sorted(store.applied_offsets()), len(store.applied_offsets()) // 2):
            store.restart(topic, partition)
        apply_course(store, log, luck)
        assert_same(store, log, expected(log))

    for_seeds(check)


def test_one_record_at_a_time_and_all_in_one_batch(fresh: Fresh, for_seeds: ForSeeds) -> None:
    def check(seed: int) -> None:
        log = write_log(seed, rollouts=2)
        wanted = expected(log)
        store = fresh()
        store.apply([record for records in log.partitions.values() for record in records])
        assert_same(store, log, wanted)
        store = fresh()
        for records in log.partitions.values():
            for record in records:
                store.apply([record])
        assert_same(store, log, wanted)

    for_seeds(check)


def test_two_logs_in_one_store(fresh: Fresh, for_seeds: ForSeeds) -> None:
    """A topic made anew under other rollouts: what the first life left stays, what the second brings is added."""

    def check(seed: int) -> None:
        one, two, store, luck = write_log(seed), write_log(seed + 1), fresh(), random.Random(seed)
        apply_course(store, one, luck)
        first = answers(store, one)
        for topic, partition in one.partitions:
            store.restart(topic, partition)
        apply_course(store, two, luck)
        assert store.applied_offsets() == two.ends
        both = answers(store, one)
        for question in ("rollouts by id", "spans", "spans of first attempts", "activity", "triplets"):
            assert both[question] == first[question], question
        wanted = expected(two)
        assert store.get_rollouts(two.rollout_ids) == wanted["rollouts by id"]
        assert answers(store, two)["spans"] == wanted["spans"]

    for_seeds(check)


# late and at the same microsecond


def test_versions_in_every_order(fresh: Fresh) -> None:
    """Older ones mixed among newer ones, over several batches, each order from a sample of all."""
    log = write_log(7, rollouts=1)
    versions = [record for (topic, _), told in log.partitions.items() if topic == "rollouts" for record in told]
    assert len(versions) > 3
    luck = random.Random(3)
    for _ in range(12):
        store = fresh()
        order = luck.sample(versions, len(versions)) + luck.sample(versions, 2)
        for start in range(0, len(order), 2):
            store.apply(order[start : start + 2])
        assert store.query_rollouts().items == [versions[-1].event]
        assert store.count_rollouts_by_status() == {versions[-1].event["status"]: 1}


@pytest.mark.parametrize(
    ("event_type", "one", "two"),
    [
        ("WorkerHeartbeat", beat(START_US, "idle", slots_free=1), beat(START_US, "busy", slots_free=0)),
        ("ResourcesPublished", published(1, resources='{"a": 1}'), published(1, resources='{"b": 1}', run_id="run-2")),
        ("RecordRejected", rejected(1, rejected_by="joiner", detail="b"), rejected(1, rejected_by="sink", detail="a")),
        ("BatchTrained", trained(1, manifest_hash="a", rows=2), trained(1, manifest_hash="b", rows=1)),
    ],
    ids=["workers", "resources", "rejects", "batches"],
)
def test_at_the_same_microsecond_one_of_them_stays_whole(fresh: Fresh, event_type: str, one: Any, two: Any) -> None:
    """Which one is the store's choice, but it is the same one in every order, and no mixture."""
    kept = []
    for batches in ([[one], [two]], [[two], [one]], [[one, two]], [[two, one]], [[two], [one], [two], [one]]):
        store = fresh()
        for offset, batch in enumerate(batches):
            store.apply([place(event_type, event, 0, 10 * offset + n) for n, event in enumerate(batch)])
        kept += [*store.workers(), *store.query_resources(), *store.query_rejects(), *store.batches()]
    assert len(kept) == 5
    assert kept[0] in (one, two)
    assert all(event == kept[0] for event in kept)


def test_a_version_told_twice_with_two_contents_is_one_of_them_whole(fresh: Fresh) -> None:
    """The fold does not do that. If anybody did, queries and the rollout must still say the same."""
    one = rollout("ro-1", 2, "running", group_id="g")
    two = ended("ro-1", 2, "failed", reason_code="x")
    for first, second in ((one, two), (two, one)):
        store = fresh()
        put(store, "RolloutStateChanged", first)
        put(store, "RolloutStateChanged", second, offset=1)
        found = store.get_rollout("ro-1")
        assert found in (one, two)
        assert store.count_rollouts_by_status() == {found["status"]: 1}
        for name in ("status", "group_id", "reason_code", "ended_at_us"):
            assert store.query_rollouts(Query((Condition(name, exact=found[name]),))).items == [found], name
