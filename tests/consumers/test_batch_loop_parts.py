"""The loop's pure parts: watermarks and the bounds of rejects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.consumers.offsets import OffsetTracker
from agl_stream.consumers.record import Partition, Record
from agl_stream.consumers.rejects import RejectLimits, Rejects, reject_event
from agl_stream.errors import TooManyRejects

P, Q = Partition("spans", 0), Partition("spans", 1)


@given(st.lists(st.tuples(st.sampled_from([P, Q]), st.integers(1, 5)), max_size=20), st.randoms(use_true_random=False))
def test_a_watermark_never_passes_unfinished_work(runs: list[tuple[Partition, int]], chance: Any) -> None:
    tracker = OffsetTracker()
    position = {P: 0, Q: 0}
    claims = []
    for partition, length in runs:
        position[partition] += length
        claims.append((partition, tracker.take(partition, position[partition])))
    order = list(claims)
    chance.shuffle(order)
    for _, claim in order:
        tracker.finish([claim])
        marks = tracker.watermarks()
        for p in (P, Q):
            mine = [c for owner, c in claims if owner == p]
            contiguous = 0
            for c in mine:
                if not c.finished:
                    break
                contiguous = c.next_offset
            assert marks.get(p, 0) == contiguous
    assert tracker.watermarks() == {p: n for p, n in position.items() if n}


def test_a_dropped_partition_is_forgotten_whatever_finishes_later() -> None:
    tracker = OffsetTracker()
    claim, other = tracker.take(P, 5), tracker.take(Q, 7)
    tracker.drop([P])
    tracker.finish([claim, other])
    assert tracker.watermarks() == {Q: 7}


class Sink:
    """Stands where the producer stands; rejects need no more of it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.flushed = 0

    def send(self, topic: str, event: dict[str, Any]) -> None:
        assert topic == "rejects"
        self.sent.append(event)

    def flush(self) -> None:
        self.flushed += 1


def record(offset: int, partition: int = 0, value: bytes = b"junk") -> Record:
    return Record("spans", partition, offset, 0, b"key", value, "", {})


def rejects_with(limits: RejectLimits) -> tuple[Rejects, Sink]:
    sink = Sink()
    return Rejects(sink, rejected_by="test", limits=limits), sink  # type: ignore[arg-type]


def test_too_many_in_a_row_stop_with_the_place_and_the_reason() -> None:
    rejects, sink = rejects_with(RejectLimits(consecutive=3))
    rejects.reject(record(0), "not_framed", "no")
    rejects.reject(record(1), "not_framed", "no")
    rejects.accept(P)
    rejects.reject(record(3, partition=1), "not_framed", "no")
    rejects.reject(record(3), "not_framed", "no")
    rejects.reject(record(4), "not_framed", "no")
    with pytest.raises(
        TooManyRejects, match=r"3 records in a row of spans partition 0.*offset 5 as undecodable \(bad\)"
    ):
        rejects.reject(record(5), "undecodable", "bad")
    assert len(sink.sent) == 6


@pytest.mark.parametrize("last", ["reject", "accept"])
def test_too_large_a_share_of_a_window_stops(last: str) -> None:
    rejects, _ = rejects_with(RejectLimits(consecutive=100, ratio=0.5, window=10))
    for offset in range(6):
        rejects.reject(record(offset), "not_framed", "no")
        if offset < 3:
            rejects.accept(P)
    with pytest.raises(TooManyRejects, match=r"of 1\d records of spans"):
        if last == "accept":
            rejects.accept(P, 1)
        else:
            rejects.reject(record(99), "not_framed", "no")


def test_few_rejects_among_many_records_never_stop() -> None:
    rejects, _ = rejects_with(RejectLimits(consecutive=3, ratio=0.1, window=100))
    for offset in range(50):
        rejects.reject(record(offset), "not_framed", "no")
        rejects.accept(P, 99)


def test_flush_waits_only_when_something_was_written() -> None:
    rejects, sink = rejects_with(RejectLimits())
    rejects.flush()
    rejects.reject(record(0), "not_framed", "no")
    rejects.flush()
    rejects.flush()
    assert sink.flushed == 1


def test_the_same_reject_has_the_same_id_and_a_bounded_payload() -> None:
    one = reject_event(record(7, value=b"x" * 100_000), "not_framed", "d" * 5000, rejected_by="sink")
    two = reject_event(record(7), "not_framed", "d", rejected_by="joiner")
    assert one["event_id"] == two["event_id"]
    assert one["event_id"] != reject_event(record(8), "not_framed", "d", rejected_by="sink")["event_id"]
    assert (len(one["payload"]), one["payload_length"], len(one["detail"])) == (65_536, 100_000, 1000)
