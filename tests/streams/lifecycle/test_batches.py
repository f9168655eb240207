"""Batches, and a process that dies anywhere within one: what was announced stays true, and nothing is lost."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.errors import NotOurFraming
from agl_stream.schemas.ids import attempt_id
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.streams.dispatch import RoundRobin
from agl_stream.streams.lifecycle.batch import BatchFold, Incoming, Writes
from agl_stream.streams.lifecycle.effects import Effect, Source
from agl_stream.streams.lifecycle.ended import EndedRollouts
from agl_stream.streams.lifecycle.replayable import ReplayableLifecycle
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, dump_state, is_offered, load_state

from .histories import ROLLOUT, Given, control, controls, reported, reports, requested, unique

PARTITIONS = 4
HOME = murmur2_partition(ROLLOUT.encode(), PARTITIONS)


class Known:
    """Nothing was published, and nothing has left the table unless said so."""

    def __init__(self) -> None:
        self.resources = ResourceView()
        self.gone: set[str] = set()

    def ended(self, rollout_ids: Any) -> set[str]:
        return self.gone & set(rollout_ids)


class Table:
    def __init__(self, states: dict[str, RolloutState] | None = None) -> None:
        self.states = states or {}

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        return self.states.get(rollout_id)


def decode(value: bytes | None, headers: Any) -> tuple[str, Any]:
    if not isinstance(value, Given):
        raise NotOurFraming("not ours")
    return value.event_type, value.event


def incoming(given: Any, offset: int, *, partition: int = HOME, topic: str | None = None) -> Incoming:
    return Incoming(Source(topic or given.topic, partition, offset, 0, None, given))


def fold_of(known: Known | None = None, **options: Any) -> BatchFold:
    return BatchFold(decode, RoundRobin(PARTITIONS), known or Known(), partitions=PARTITIONS, **options)


def apply(*given: Given, known: Known | None = None, table: Table | None = None) -> Writes:
    offsets = [incoming(entry, offset) for offset, entry in enumerate(given)]
    return fold_of(known).apply(offsets, table or Table())


def told(effects: list[Effect], topic: str) -> list[dict[str, Any]]:
    return [effect.event for effect in effects if effect.topic == topic]


def test_a_batch_announces_a_rollout_once():
    writes = apply(requested(), reported("preparing", worker_id="w"), reported("running", at=2))
    assert [event["version"] for event in told(writes.effects, "rollouts")] == [3]
    # claimed within the batch: there is nothing left to offer
    assert told(writes.effects, "dispatch") == []


def test_an_offer_keeps_its_partition():
    writes = apply(requested())
    (_, state) = writes.states[ROLLOUT]
    (effect,) = [effect for effect in writes.effects if effect.topic == "dispatch"]
    assert effect.partition == state["attempts"][0]["dispatch_partition"] >= 0
    table = Table({ROLLOUT: state})
    again = fold_of().apply([incoming(requested(), 0)], table)
    assert [e for e in again.effects if e.topic == "dispatch"] == [effect]
    assert told(again.effects, "rollouts") == told(writes.effects, "rollouts")
    # the same request from a writer that repeats itself is no reading again: nothing to say
    assert fold_of().apply([incoming(requested(), 9)], table).effects == []


def test_round_robin_is_even():
    dispatcher = RoundRobin(PARTITIONS, start=2)
    assert [dispatcher.choose({}) for _ in range(6)] == [3, 0, 1, 2, 3, 0]


def test_a_record_elsewhere_goes_home_with_its_ids():
    away = (HOME + 1) % PARTITIONS
    nameless = requested(event_id="", at=0)
    writes = fold_of().apply([incoming(nameless, 5, partition=away)], Table())
    (effect,) = writes.effects
    assert (effect.topic, effect.partition, effect.event["rollout_id"]) == ("rollout-requests", HOME, ROLLOUT)
    assert effect.event["event_id"] and not writes.states


def test_what_left_the_table_is_not_run_again():
    known = Known()
    known.gone.add(ROLLOUT)
    writes = apply(requested(), reported("succeeded"), control("cancel"), known=known)
    assert not writes.states
    assert [event["reason_code"] for event in told(writes.effects, "rejects")] == ["late_event", "late_event"]
    assert len(writes.effects) == 2


def test_a_flood_of_rejects_stops_the_process_after_it_has_been_written():
    fold = fold_of(reject_limit=3)
    broken = [Incoming(Source("attempts", 0, offset, 0, None, b"?")) for offset in range(2)]
    assert fold.apply(broken, Table()).flood is None
    writes = fold.apply([Incoming(Source("attempts", 0, 2, 0, None, b"?"))], Table())
    assert writes.flood is not None and "AGL_STREAM_REJECT_LIMIT_CONSECUTIVE=3" in str(writes.flood)
    assert [event["reason_code"] for event in told(writes.effects, "rejects")] == ["not_framed"]


def test_a_good_record_ends_a_row_of_rejects():
    fold = fold_of(reject_limit=2)
    bad = Incoming(Source("rollout-requests", HOME, 0, 0, None, b"?"))
    for _ in range(5):
        assert fold.apply([bad, incoming(requested(), 1)], Table()).flood is None


class Store:
    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = {event["rollout_id"]: event for event in events}

    def get_rollouts(self, rollout_ids: Any) -> dict[str, Any]:
        return {key: self._events[key] for key in rollout_ids if key in self._events}


def test_a_rollout_is_forgotten_only_when_the_store_shows_its_end():
    ended = EndedRollouts(
        Store(
            {"rollout_id": "ro-over", "status": "succeeded", "version": 4},
            {"rollout_id": "ro-behind", "status": "failed", "version": 3},
            {"rollout_id": "ro-open", "status": "running", "version": 9},
        )
    )
    assert ended.among(["ro-over", "ro-open", "ro-none"]) == {"ro-over"}
    assert ended.shown({"ro-over": 4, "ro-behind": 4, "ro-open": 9}) == {"ro-over"}


class Died(Exception):
    pass


class Process:
    """Everything that survives a process, and a process that may die after any write."""

    def __init__(self, records: list[Incoming]) -> None:
        self.records = records
        self.committed = 0
        self.changelog: list[tuple[str, bytes]] = []
        self.log: list[Effect] = []

    def live(self, sizes: list[int], writes_left: int) -> None:
        """Read batches of these sizes; die when the writes are used up."""
        table = Table({key: load_state(value) for key, value in self.changelog})
        fold = fold_of()
        position = self.committed
        for size in sizes:
            batch = self.records[position : position + size]
            if not batch:
                return
            position += len(batch)
            writes = fold.apply(batch, table)
            for rollout_id, (_, state) in writes.states.items():
                if not (writes_left := writes_left - 1):
                    raise Died
                self.changelog.append((rollout_id, dump_state(state)))
            for effect in writes.effects:
                if not (writes_left := writes_left - 1):
                    raise Died
                self.log.append(effect)
            table.states.update({key: state for key, (_, state) in writes.states.items()})
            if not (writes_left := writes_left - 1):
                raise Died
            self.committed = position


@settings(max_examples=int(os.environ.get("AGL_STREAM_TEST_EXAMPLES", "80")), deadline=None)
@given(data=st.data())
def test_death_at_any_moment(data: st.DataObject):
    events = data.draw(st.lists(st.one_of(reports(), reports(), controls()), max_size=8))
    config = {"max_attempts": 3, "retry_condition": ["failed", "timeout", "unresponsive"]}
    history = data.draw(st.permutations(unique([requested(config=config), *events])))
    records = [incoming(entry, offset) for offset, entry in enumerate(history)]
    process = Process(records)
    lives = data.draw(st.lists(st.integers(1, 12), max_size=6))
    for writes_left in [*lives, -1]:
        try:
            process.live(data.draw(st.lists(st.integers(1, 4), min_size=9, max_size=9)), writes_left)
        except Died:
            continue
    assert process.committed == len(records)

    undisturbed = Process(records)
    undisturbed.live([1] * len(records), -1)
    final = {key: load_state(value) for key, value in process.changelog}.get(ROLLOUT)
    smooth = {key: load_state(value) for key, value in undisturbed.changelog}.get(ROLLOUT)
    assert without_place(final) == without_place(smooth)

    contents: dict[str, dict[str, Any]] = {}
    for effect in process.log:
        if effect.topic != "rejects":
            assert contents.setdefault(effect.event["event_id"], effect.event) == effect.event
    if final is None or final["request"] is None:
        return
    versions = [event["version"] for event in told(process.log, "rollouts")]
    assert versions[-1] == final["version"] == max(versions)
    if is_offered(final):
        latest = final["attempts"][-1]
        number = latest["attempt_number"], latest["delivery"]
        places = {
            effect.partition
            for effect in process.log
            if effect.topic == "dispatch" and (effect.event["attempt_number"], effect.event["delivery"]) == number
        }
        assert places == {latest["dispatch_partition"]}


def test_an_offer_told_again_after_an_update_is_another_event():
    """A crash between state and effects of the update: the offer, told again, carries the updated request."""
    update = control("update", payload='{"metadata": {"note": 1}}')
    process = Process([incoming(entry, offset) for offset, entry in enumerate([requested(), update])])
    with pytest.raises(Died):
        process.live([1, 1], 6)
    process.live([1, 1], -1)
    offers = {event["event_id"]: event["metadata"] for event in told(process.log, "dispatch")}
    assert list(offers.values()) == ["{}", '{"note":1}']


def without_place(state: RolloutState | None) -> Any:
    """A state without what depends on the batches and the dispatcher's turn."""
    if state is None:
        return None
    return {**state, "attempts": [{**attempt, "dispatch_partition": 0} for attempt in state["attempts"]]}


def test_the_replayable_lifecycle_does_the_same():
    history = [
        requested(config={"max_attempts": 2, "retry_condition": ["failed"]}),
        reported("failed"),
        reported("succeeded", 2),
    ]
    replay = ReplayableLifecycle()
    effects = []
    for offset, entry in enumerate(history):
        effects += replay.feed(entry.event_type, entry.event, Source(entry.topic, HOME, offset))
    process = Process([incoming(entry, offset) for offset, entry in enumerate(history)])
    process.live([1, 1, 1], -1)
    by_id = {effect.event["event_id"]: effect.event for effect in process.log}
    assert {effect.event["event_id"]: effect.event for effect in effects} == by_id
    assert replay.states[ROLLOUT]["status"] == "succeeded"


def test_resources_fed_to_a_replay_are_pinned():
    replay = ReplayableLifecycle()
    published = {"resources_id": "rs-1", "version": 3, "occurred_at_us": 1}
    assert replay.feed("ResourcesPublished", published, Source("resources", 0, 0)) == []
    request = requested()
    replay.feed(request.event_type, request.event, Source(request.topic, HOME, 0))
    state = replay.states[ROLLOUT]
    assert state["request"] is not None and state["request"]["resources_version"] == 3


@pytest.mark.parametrize("number", [0, 1])
def test_an_attempt_may_be_named_by_its_id_alone(number: int):
    running = reported("running")
    running.event["attempt_number"] = number
    writes = apply(requested(), running)
    assert writes.states[ROLLOUT][1]["status"] == "running"
    stranger = reported("running", attempt_id=attempt_id("ro-other", 1))
    writes = apply(requested(), stranger)
    assert [event["reason_code"] for event in told(writes.effects, "rejects")] == ["unknown_attempt"]
