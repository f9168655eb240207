"""Numbers that nobody meant, from writers that anybody may be: they stop nothing, and everything still encodes."""

from __future__ import annotations

from typing import Any

import pytest

from agl_stream.schemas.codec import Codec
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.topics import TOPICS
from agl_stream.streams.dispatch import RoundRobin
from agl_stream.streams.lifecycle.batch import BatchFold, Incoming, Writes
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.limits import LATEST_US
from agl_stream.streams.lifecycle.replayable import ReplayableLifecycle
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, dump_state, load_state

from ..makers import make
from .histories import ROLLOUT, Given, reported, requested

PARTITIONS = 4
HOME = murmur2_partition(ROLLOUT.encode(), PARTITIONS)
CODEC = Codec()
SENT_MS = 1_790_000_000_000
NO_TIMES = [-(2**63), -1, 0, LATEST_US + 1, 1_790_000_000_000_000_000, 2**63 - 1]
"""The one before the last is in nanoseconds."""


class Known:
    resources = ResourceView()

    def ended(self, rollout_ids: Any) -> set[str]:
        return set()


class Lifecycle:
    """A table that stands in its changelog and nowhere else: every batch is a restart. Bytes in, bytes out."""

    def __init__(self) -> None:
        self._fold = BatchFold(CODEC.decode, RoundRobin(PARTITIONS), Known(), partitions=PARTITIONS)
        self._changelog: dict[str, bytes] = {}
        self._offset = 0

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        encoded = self._changelog.get(rollout_id)
        return None if encoded is None else load_state(encoded)

    @property
    def state(self) -> RolloutState:
        state = self.get(ROLLOUT, HOME)
        assert state is not None
        return state

    def read(self, *records: Given | bytes, timestamp_ms: int = SENT_MS, topic: str = "attempts") -> Writes:
        incoming: list[Incoming] = []
        for record in records:
            is_event = isinstance(record, Given)
            value = CODEC.encode(record.event_type, record.event) if is_event else record
            place = Source(record.topic if is_event else topic, HOME, self._offset, timestamp_ms, None, value)
            incoming.append(Incoming(place))
            self._offset += 1
        writes = self._fold.apply(incoming, self)
        for rollout_id, (_, state) in writes.states.items():
            encoded = self._changelog[rollout_id] = dump_state(state)
            assert load_state(encoded) == state
        for effect in writes.effects:
            CODEC.encode(TOPICS[effect.topic].event, effect.event)
        return writes


def rejects(writes: Writes) -> list[tuple[str, str]]:
    return [(e.event["reason_code"], e.event["detail"]) for e in writes.effects if e.topic == "rejects"]


@pytest.mark.parametrize("at_us", NO_TIMES)
def test_a_time_that_is_none_is_the_records_own(at_us: int):
    lifecycle = Lifecycle()
    lifecycle.read(requested(occurred_at_us=at_us), reported("running", occurred_at_us=at_us))
    assert lifecycle.state["requested_at_us"] == SENT_MS * 1000
    assert lifecycle.state["status"] == "running"
    silence = reported("unresponsive", occurred_at_us=SENT_MS * 1000 + 1)
    lifecycle.read(silence)
    assert lifecycle.state["status"] == "failed", "silence is later than a start in no year at all"


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, 2**62, 2**63 - 1])
def test_a_records_own_time_may_be_anything(timestamp_ms: int):
    lifecycle = Lifecycle()
    writes = lifecycle.read(b"?", requested(occurred_at_us=0), timestamp_ms=timestamp_ms)
    assert [code for code, _ in rejects(writes)] == ["not_framed"]
    assert 0 < lifecycle.state["requested_at_us"] <= LATEST_US


@pytest.mark.parametrize("at_us", [2**63 - 1, 1_790_000_000_000_000_000])
def test_resources_from_no_year_at_all_are_not_the_latest_for_ever(at_us: int):
    replay = ReplayableLifecycle()
    for offset, published_at_us in enumerate([at_us, SENT_MS * 1000 + 1]):
        event = make("ResourcesPublished", resources_id=f"rs-{offset}", version=1, occurred_at_us=published_at_us)
        replay.feed("ResourcesPublished", event, Source("resources", 0, offset, SENT_MS))
    given = requested()
    replay.feed(given.event_type, given.event, Source(given.topic, HOME, 0, SENT_MS))
    request = replay.states[ROLLOUT]["request"]
    assert request is not None and request["resources_id"] == "rs-1"
