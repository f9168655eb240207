"""Positions, tables and names: the parts that keep the lifecycle from missing something."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.errors import AglStreamError, EngineUnreachable
from agl_stream.schemas.ids import new_rollout_id
from agl_stream.settings import Settings
from agl_stream.streams.instance import stable_name
from agl_stream.streams.lifecycle.positions import Positions
from agl_stream.streams.lifecycle.stall import StallGuard
from agl_stream.streams.lifecycle.state import RolloutState, dump_state, empty_state, load_state
from agl_stream.streams.lifecycle.table import open_table
from agl_stream.streams.log_tail import LogTail


class Message(NamedTuple):
    topic: str
    partition: int
    offset: int


def messages(*offsets: int, partition: int = 0) -> list[Message]:
    return [Message("t", partition, offset) for offset in offsets]


def test_what_comes_in_order_is_admitted_once():
    positions = Positions()
    positions.start({("t", 0): 5})
    assert positions.admit(messages(3, 4, 5, 6, 6, 7)) == (messages(5, 6, 7), {})
    assert positions.expected == {("t", 0): 8}
    assert positions.admit(messages(1, partition=9)) == ([], {})


def test_something_missing_is_found_and_what_was_read_ahead_waits():
    positions = Positions()
    positions.start({("t", 0): 0, ("t", 1): 0})
    admitted, early = positions.admit([*messages(0, 4, 5), *messages(0, partition=1)])
    assert admitted == [*messages(0), *messages(0, partition=1)] and early == {("t", 0): 4}
    positions.rewinding(("t", 0))
    # still under way from before the consumer was sent back
    assert positions.admit(messages(6, 7)) == ([], {})
    assert positions.admit(messages(1, 2, 3, 4)) == (messages(1, 2, 3, 4), {})
    assert positions.admit(messages(9))[1] == {("t", 0): 9}


def test_a_gap_of_the_log_is_stepped_over():
    positions = Positions()
    positions.start({("t", 0): 0})
    assert positions.admit(messages(3))[1] == {("t", 0): 3}
    positions.skip_to(("t", 0), 3)
    assert positions.admit(messages(3, 4)) == (messages(3, 4), {})


@given(st.data())
def test_nothing_is_missed_however_records_are_lost(data: st.DataObject):
    """A consumer that loses any records and is sent back whenever asked delivers each exactly once, in order."""
    positions = Positions()
    positions.start({("t", 0): 0})
    handled: list[int] = []
    position = 0
    for _ in range(200):
        batch = list(range(position, min(position + data.draw(st.integers(1, 5)), 20)))
        position += len(batch)
        arrived = [offset for offset in batch if data.draw(st.integers(0, 4))]
        admitted, early = positions.admit(messages(*arrived))
        handled += [message.offset for message in admitted]
        ahead = position > positions.expected["t", 0]
        if early or (ahead and data.draw(st.booleans())):
            positions.rewinding(("t", 0))
            position = positions.expected["t", 0]
        if handled == list(range(20)):
            return
    assert handled == list(range(len(handled)))


@pytest.fixture
def settings(bootstrap_servers: str, tmp_path: Path) -> Settings:
    return Settings.load(
        bootstrap_servers=bootstrap_servers, dir=str(tmp_path), namespace="t" + uuid.uuid4().hex[:8], partitions=2
    )


@pytest.fixture
def changelog(settings: Settings) -> str:
    topic = settings.topic("lifecycle-state")
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})])[topic].result(10)
    return topic


def write(settings: Settings, topic: str, partition: int, *entries: tuple[str, RolloutState | None]) -> int:
    """Append to the changelog; the last offset."""
    placed: list[int] = []
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for rollout_id, state in entries:
        value = None if state is None else dump_state(state)
        producer.produce(
            topic, value, rollout_id, partition, on_delivery=lambda error, message: placed.append(message.offset())
        )
    assert producer.flush(10) == 0
    return max(placed)


def state(rollout_id: str, version: int) -> RolloutState:
    return {**empty_state(rollout_id), "version": version}


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_table_comes_back_and_follows_its_partitions(settings: Settings, changelog: str, tmp_path: Path, store: str):
    settings = Settings.load(**{**vars(settings), "lifecycle_store": store})
    kept, gone = new_rollout_id(), new_rollout_id()
    write(settings, changelog, 0, (kept, state(kept, 1)), (gone, state(gone, 1)), (kept, state(kept, 2)), (gone, None))
    write(settings, changelog, 1, ("ro-one", state("ro-one", 7)))

    def load() -> dict[str, int]:
        return {rollout_id: found["version"] for rollout_id, _, found in table.items()}

    table = open_table(settings, changelog, tmp_path / store)
    table.catch_up([0])
    assert load() == {kept: 2} and table.owns(0) and not table.owns(1)
    assert table.get(gone, 0) is None

    written = state(kept, 3)
    table.put(kept, 0, written, dump_state(written), write(settings, changelog, 0, (kept, written)))
    # somebody else held the partition for a moment
    write(settings, changelog, 0, (kept, state(kept, 4)))
    table.catch_up([0, 1])
    assert load() == {kept: 4, "ro-one": 7}
    table.forget("ro-one", 1, write(settings, changelog, 1, ("ro-one", None)))
    table.catch_up([1])
    assert load() == {}
    table.close()

    table = open_table(settings, changelog, tmp_path / store)
    table.catch_up([0, 1])
    assert load() == {kept: 4}
    table.close()


def test_a_state_of_another_format_is_refused():
    assert load_state(dump_state(state("ro", 1)))["version"] == 1
    with pytest.raises(AglStreamError, match="another version"):
        load_state(b'{"format": 99}')


def test_a_log_is_read_to_its_end_and_from_any_offset(settings: Settings, changelog: str):
    tail = LogTail(settings, changelog, name="test")
    assert tail.partitions() == [0, 1]
    tail.follow({0: 0, 1: 0})
    seen: list[tuple[int, int]] = []
    tail.read_to_end(lambda message: seen.append((message.partition(), message.offset())))
    assert seen == []
    write(settings, changelog, 1, *[("ro", state("ro", n)) for n in range(3)])
    tail.read_to_end(lambda message: seen.append((message.partition(), message.offset())))
    assert seen == [(1, 0), (1, 1), (1, 2)] and tail.positions == {0: 0, 1: 3}
    assert tail.first_from(1, 1) == 1 and tail.first_from(1, 3) is None and tail.first_from(0, 0) is None
    tail.close()
    with pytest.raises(EngineUnreachable, match="does not exist"):
        LogTail(settings, "no-such-topic", name="test").partitions()


def test_names_are_kept_by_the_living_and_given_again(tmp_path: Path):
    with stable_name("lifecycle", tmp_path) as first:
        with stable_name("lifecycle", tmp_path) as second:
            assert first.endswith("-0") and second.endswith("-1")
        with stable_name("lifecycle", tmp_path) as third:
            assert third == second


class Offsets:
    """Offsets as told, with as many records waiting as told."""

    def __init__(self) -> None:
        self.committed, self.lag, self.away = 5, 0, False

    def ask(self, places: object) -> dict[tuple[str, int], tuple[int, int]]:
        if self.away:
            raise EngineUnreachable("nobody there")
        return {("t", 0): (self.committed, self.committed + self.lag)}


def test_standing_still_is_judged_against_lag(monkeypatch: pytest.MonkeyPatch, settings: Settings):
    from agl_stream.streams.lifecycle import stall

    now = 0.0
    monkeypatch.setattr(stall.time, "monotonic", lambda: now)
    offsets = Offsets()
    guard = StallGuard(settings, "g", offsets, lambda: [("t", 0)])  # type: ignore[arg-type]

    def after(seconds: float) -> None:
        nonlocal now
        now += seconds
        guard.look()

    for _ in range(10):
        after(60)  # silence for minutes: nothing waits
    offsets.lag = 3
    after(60)
    offsets.committed = 6
    after(60)
    offsets.away = True
    after(60)
    offsets.away = False
    after(50)
    with pytest.raises(AglStreamError, match="stands still: 3 records"):
        after(60)
