"""What can be asked of rollouts: every field, every kind of condition, every sorting, pages and totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agl_stream.errors import UsageError
from agl_stream.schemas.events import Event
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.backends import Backend
from tests.conformance.store.events import START_US, ids, place, rollout
from tests.conformance.store.model import ROLLOUT_FIELDS, Model, rollout_field
from tests.streams.makers import attempt_state

STATUSES = ("queuing", "running", "succeeded", "failed")
TEXTS = tuple(name for name in ROLLOUT_FIELDS if name.split("_")[-1] in ("id", "status", "code", "mode"))


def described(n: int) -> Event:
    """One of sixty rollouts; each field has a rhythm of its own, null now and then."""
    rollout_id = f"ro-{n:02d}"
    attempts = [attempt_state(rollout_id, k, worker_id=None if n % 3 else f"w{n % 4}") for k in range(1, 1 + n % 4)]
    return rollout(
        rollout_id,
        1 + n % 7,
        STATUSES[n % 4],
        reason_code=("agent_error", "timeout")[n % 2] if n % 4 == 3 else None,
        mode=("train", "val", "test")[n % 3],
        resources_id=None if n % 6 == 0 else f"rs-{n % 6}",
        resources_version=None if n % 6 == 0 else n % 11,
        run_id=None if n % 5 == 0 else f"run-{n % 2}",
        group_id=None if n % 8 == 0 else f"g%_{n // 8}",
        requested_at_us=START_US + (n * 7) % 20,
        ended_at_us=START_US + 100 + n % 9 if n % 4 > 1 else None,
        attempts=attempts,
    )


EVENTS = [described(n) for n in range(60)]


@pytest.fixture(scope="module")
def library(backend: Backend) -> Iterator[StateStore]:
    """A store with the sixty rollouts, for reading."""
    database = backend.make()
    store = database.open()
    earlier = [event | {"version": 0, "status": "queuing", "mode": "unknown", "attempts": []} for event in EVENTS]
    store.apply([place("RolloutStateChanged", event, 0, n) for n, event in enumerate(earlier)])
    store.apply([place("RolloutStateChanged", event, 0, n) for n, event in enumerate(EVENTS, len(earlier))])
    yield store
    database.close()


@pytest.fixture(scope="module")
def model() -> Model:
    made = Model()
    made.apply([place("RolloutStateChanged", event, 0, n) for n, event in enumerate(EVENTS)])
    return made


def having(name: str, value: Any) -> list[str]:
    """Ids in the default order, found without any query."""
    chosen = [event for event in EVENTS if rollout_field(event, name) == value]
    return ids(sorted(chosen, key=lambda event: (event["requested_at_us"], event["rollout_id"])))


def values_of(name: str) -> list[Any]:
    found = {rollout_field(event, name) for event in EVENTS}
    assert len(found) > 1
    return sorted(found, key=lambda value: (value is not None, value))


# conditions


@pytest.mark.parametrize("name", ROLLOUT_FIELDS)
def test_a_rollout_can_be_asked_by(library: StateStore, name: str) -> None:
    """Equality and membership, for each value that occurs, null included, and for one that does not."""
    values = values_of(name)
    for value in values:
        expected = having(name, value)
        for condition in (Condition(name, exact=value), Condition(name, within=[value])):
            page = library.query_rollouts(Query((condition,)))
            assert (ids(page), page.total) == (expected, len(expected))
    absent = -1 if isinstance(values[-1], int) else "absent"
    assert library.query_rollouts(Query((Condition(name, exact=absent),))).items == []
    several = library.query_rollouts(Query((Condition(name, within=[*values[:2], absent]),)))
    assert sorted(ids(several)) == sorted(having(name, values[0]) + having(name, values[1]))


def test_membership_of_nothing_finds_nothing(library: StateStore) -> None:
    page = library.query_rollouts(Query((Condition("status", within=[]),)))
    assert (page.items, page.total) == ([], 0)


def test_membership_of_null(library: StateStore) -> None:
    only = library.query_rollouts(Query((Condition("run_id", within=[None]),)))
    assert ids(only) == having("run_id", None) and only.total == 12
    mixed = library.query_rollouts(Query((Condition("run_id", within=[None, "run-1"]),)))
    assert sorted(ids(mixed)) == sorted(having("run_id", None) + having("run_id", "run-1"))


def test_membership_takes_repeated_and_many_values(library: StateStore) -> None:
    repeated = library.query_rollouts(Query((Condition("status", within=["failed", "failed", "x"]),)))
    assert ids(repeated) == having("status", "failed")
    wanted = [f"ro-{n:02d}" for n in range(50_000)]
    assert library.query_rollouts(Query((Condition("rollout_id", within=wanted),))).total == 60
    assert library.query_rollouts(Query((Condition("rollout_id", within=tuple(wanted[59:])),))).total == 1


def test_membership_of_numbers(library: StateStore) -> None:
    page = library.query_rollouts(Query((Condition("attempt_number", within=[1, 3, 2**63 - 1, -(2**63)]),)))
    assert sorted(ids(page)) == sorted(having("attempt_number", 1) + having("attempt_number", 3))
    many = library.query_rollouts(Query((Condition("version", within=list(range(7, 5000))),)))
    assert ids(many) == having("version", 7)


@pytest.mark.parametrize("name", TEXTS)
def test_a_part_of_a_text(library: StateStore, name: str) -> None:
    whole = next(value for value in values_of(name) if value is not None)
    for part in (whole, whole[:2], whole[1:], whole[-1]):
        expected = [e for e in EVENTS if rollout_field(e, name) is not None and part in rollout_field(e, name)]
        page = library.query_rollouts(Query((Condition(name, contains=part),), sort_by="rollout_id"))
        assert ids(page) == ids(sorted(expected, key=lambda event: event["rollout_id"]))
    assert library.query_rollouts(Query((Condition(name, contains=whole + "x"),))).total == 0


def test_a_part_of_a_text_is_no_pattern(library: StateStore) -> None:
    for part, total in (("%", 52), ("_", 52), ("g%_1", 7), ("g__1", 0), ("%1", 0), ("*", 0), ("g.", 0), ("'", 0)):
        assert library.query_rollouts(Query((Condition("group_id", contains=part),))).total == total, part


def test_the_case_of_a_part_counts(library: StateStore) -> None:
    assert library.query_rollouts(Query((Condition("rollout_id", contains="RO"),))).total == 0
    assert library.query_rollouts(Query((Condition("rollout_id", contains="ro"),))).total == 60


def test_every_text_contains_the_empty_one_and_null_does_not(library: StateStore) -> None:
    assert library.query_rollouts(Query((Condition("rollout_id", contains=""),))).total == 60
    assert library.query_rollouts(Query((Condition("run_id", contains=""),))).total == 48


def test_a_number_contains_nothing(library: StateStore) -> None:
    for name in ("version", "requested_at_us", "attempt_number"):
        for part in ("1", ""):
            assert library.query_rollouts(Query((Condition(name, contains=part),))).total == 0


def test_and_or_and_must(library: StateStore) -> None:
    two = (Condition("status", exact="failed"), Condition("rollout_id", contains="-0"))
    assert ids(library.query_rollouts(Query(two, sort_by="rollout_id"))) == ["ro-03", "ro-07"]
    either = library.query_rollouts(Query(two, logic="or", sort_by="rollout_id"))
    assert ids(either) == [f"ro-{n:02d}" for n in range(60) if n % 4 == 3 or n < 10]
    narrowed = Query(two, logic="or", must=(Condition("run_id", exact="run-1"),), sort_by="rollout_id")
    found = ids(library.query_rollouts(narrowed))
    assert found == [f"ro-{n:02d}" for n in range(60) if (n % 4 == 3 or n < 10) and n % 2 and n % 5]
    none = Query(two, logic="or", must=(Condition("run_id", exact="run-1"), Condition("run_id", exact="run-0")))
    assert library.query_rollouts(none).items == []


def test_no_conditions_match_everything(library: StateStore) -> None:
    for query in (Query(), Query(logic="or"), Query(logic="or", must=(Condition("rollout_id", contains="ro"),))):
        assert library.query_rollouts(query).total == 60


def test_one_field_in_several_conditions(library: StateStore) -> None:
    both = (Condition("rollout_id", contains="1"), Condition("rollout_id", contains="2"))
    assert ids(library.query_rollouts(Query(both, sort_by="rollout_id"))) == ["ro-12", "ro-21"]
    either = library.query_rollouts(Query(both, logic="or"))
    assert sorted(ids(either)) == [f"ro-{n:02d}" for n in range(60) if "1" in f"{n:02d}" or "2" in f"{n:02d}"]
    statuses = (Condition("status", exact="failed"), Condition("status", exact="running"))
    assert library.query_rollouts(Query(statuses)).total == 0
    assert library.query_rollouts(Query(statuses, logic="or")).total == 30


def test_a_condition_that_no_row_can_meet_beside_one_that_some_do(library: StateStore) -> None:
    two = (Condition("status", within=[]), Condition("status", exact="failed"))
    assert library.query_rollouts(Query(two)).total == 0
    assert ids(library.query_rollouts(Query(two, logic="or"))) == having("status", "failed")


# order


def test_default_order_is_the_order_of_request_then_of_ids(library: StateStore, model: Model) -> None:
    found = library.query_rollouts().items
    ranks = [(event["requested_at_us"], event["rollout_id"]) for event in found]
    assert len(found) == 60 and ranks == sorted(ranks)
    assert found == model.query_rollouts().items


@pytest.mark.parametrize("name", ROLLOUT_FIELDS)
def test_rollouts_sort_by(library: StateStore, name: str) -> None:
    ascending = library.query_rollouts(Query(sort_by=name)).items
    ranks = [(rollout_field(e, name) is not None, rollout_field(e, name), e["rollout_id"]) for e in ascending]
    assert len(ranks) == 60 and ranks == sorted(ranks)
    descending = library.query_rollouts(Query(sort_by=name, sort_order="desc")).items
    assert descending == ascending[::-1]


def test_descending_without_a_field_is_the_latest_first(library: StateStore) -> None:
    assert library.query_rollouts(Query(sort_order="desc")).items == library.query_rollouts().items[::-1]


# pages


@pytest.mark.parametrize("sort_by", [None, "status", "run_id", "ended_at_us", "attempt_number"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_cover_everything_once(library: StateStore, sort_by: str | None, order: Any) -> None:
    whole = ids(library.query_rollouts(Query(sort_by=sort_by, sort_order=order)))
    paged: list[str] = []
    for offset in range(0, 68, 7):
        page = library.query_rollouts(Query(sort_by=sort_by, sort_order=order, limit=7, offset=offset))
        assert (page.total, page.limit, page.offset, len(page)) == (60, 7, offset, min(7, max(0, 60 - offset)))
        paged += ids(page)
    assert paged == whole and len(set(paged)) == 60


def test_limit_none_of_them_and_no_limit(library: StateStore) -> None:
    nothing = library.query_rollouts(Query(limit=0))
    assert (nothing.items, nothing.total) == ([], 60)
    everything = library.query_rollouts(Query(limit=-1))
    assert (len(everything), everything.total) == (60, 60)
    more = library.query_rollouts(Query(limit=1000))
    assert (more.items, more.total, more.limit) == (everything.items, 60, 1000)


def test_an_offset_without_a_limit(library: StateStore) -> None:
    whole = ids(library.query_rollouts())
    page = library.query_rollouts(Query(offset=57))
    assert (ids(page), page.total) == (whole[57:], 60)


def test_an_offset_beyond_the_end(library: StateStore) -> None:
    for limit in (-1, 5):
        page = library.query_rollouts(Query(limit=limit, offset=60))
        assert (page.items, page.total) == ([], 60)
    assert library.query_rollouts(Query(limit=1, offset=2**40)).items == []


def test_a_page_of_what_conditions_leave(library: StateStore) -> None:
    failed = (Condition("status", exact="failed"),)
    whole = ids(library.query_rollouts(Query(failed, sort_by="version")))
    page = library.query_rollouts(Query(failed, sort_by="version", limit=4, offset=9))
    assert (ids(page), page.total, len(whole)) == (whole[9:13], 15, 15)


# refusals


@pytest.mark.parametrize(
    "name", ["event", "input", "metadata", "attempts", "config", "Status", " status", "", "status; DROP TABLE rollouts"]
)
def test_a_field_that_cannot_be_asked_is_named(library: StateStore, name: str) -> None:
    condition = Condition(name, exact="x")
    for query in (
        *(Query((condition,)), Query(must=(condition,)), Query(sort_by=name)),
        *(Query((condition,), limit=0), Query((Condition("status", within=[]), condition))),
    ):
        with pytest.raises(UsageError, match="rollouts cannot be asked by") as refused:
            library.query_rollouts(query)
        assert repr(name) in str(refused.value) and "requested_at_us" in str(refused.value)


def test_an_order_and_a_logic_that_do_not_exist_are_refused(library: StateStore) -> None:
    with pytest.raises(UsageError, match="sort_order"):
        library.query_rollouts(Query(sort_order="up"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="logic"):
        library.query_rollouts(Query((Condition("status", exact="x"),), logic="xor"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [["failed"], {"a": 1}, b"failed", 2**63, -(2**63) - 1, 10**400])
def test_a_value_that_no_field_can_have_is_refused(library: StateStore, value: Any) -> None:
    for name in ("version", "rollout_id", "run_id"):
        for condition in (Condition(name, exact=value), Condition(name, within=["a", value])):
            with pytest.raises(UsageError, match=f"{name} can be compared with"):
                library.query_rollouts(Query((condition,)))
