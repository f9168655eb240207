"""Rejects: whole, once for each place and reason."""

from __future__ import annotations

import pytest

from agl_stream.errors import UsageError
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.events import START_US, ids, put, rejected


def test_a_reject_comes_back_whole(store: StateStore) -> None:
    event = rejected(
        2**40, detail="größer", source_key=b"\0\xffkey", rollout_id="ro-1", attempt_id="at-1", payload_length=2**40,
        producer={"name": "sink", "instance": "host-1", "version": "0.1.0"},
    )  # fmt: skip
    put(store, "RecordRejected", event)
    assert store.query_rejects().items == [event]
    assert store.rejects_by_reason() == {"undecodable": 1}


def test_null_and_empty_payloads_and_keys(store: StateStore) -> None:
    events = [rejected(1, payload=None, source_key=None), rejected(2, payload=b"", source_key=b"")]
    put(store, "RecordRejected", *events)
    assert store.query_rejects(Query(sort_by="source_offset")).items == events


def test_without_rejects_there_is_nothing_to_count(store: StateStore) -> None:
    assert store.rejects_by_reason() == {}
    assert store.query_rejects().items == []


def test_one_record_rejected_twice_for_one_reason_counts_once(store: StateStore) -> None:
    put(store, "RecordRejected", rejected(7), rejected(8), rejected(7))
    put(store, "RecordRejected", rejected(7), offset=3)
    assert store.rejects_by_reason() == {"undecodable": 2}
    assert store.counts()["rejects"] == 2


def test_rejected_by_two_consumers_it_is_the_later_one(store: StateStore) -> None:
    sink = rejected(7, occurred_at_us=START_US + 1)
    joiner = rejected(7, occurred_at_us=START_US + 2, rejected_by="joiner", detail="other")
    put(store, "RecordRejected", joiner, partition=0)
    put(store, "RecordRejected", sink, partition=1)
    assert store.query_rejects().items == [joiner]
    assert store.query_rejects(Query((Condition("rejected_by", exact="sink"),))).total == 0
    put(store, "RecordRejected", joiner, offset=1)
    assert store.rejects_by_reason() == {"undecodable": 1}


def test_one_record_rejected_for_two_reasons_counts_twice(store: StateStore) -> None:
    put(store, "RecordRejected", rejected(7, "undecodable"), rejected(7, "nan_logprob"))
    assert store.rejects_by_reason() == {"undecodable": 1, "nan_logprob": 1}


def test_the_same_offset_elsewhere_is_another_record(store: StateStore) -> None:
    put(
        store,
        "RecordRejected",
        *[rejected(7), rejected(7, source_partition=2), rejected(7, source_topic="attempts"), rejected(0)],
    )
    assert store.rejects_by_reason() == {"undecodable": 4}


def test_what_is_no_record_is_told_apart_by_its_event(store: StateStore) -> None:
    put(store, "RecordRejected", rejected(-1, event_id="a"), rejected(-1, event_id="b"), rejected(-1, event_id="a"))
    assert store.rejects_by_reason() == {"undecodable": 2}
    assert ids(store.query_rejects(), "event_id") == ["a", "b"]


def test_by_default_the_oldest_comes_first(store: StateStore) -> None:
    times = {5: 30, 6: 10, 7: 20, 8: 10}
    put(store, "RecordRejected", *[rejected(offset, occurred_at_us=START_US + at) for offset, at in times.items()])
    assert ids(store.query_rejects(), "source_offset") == [6, 8, 7, 5]
    assert ids(store.query_rejects(Query(sort_order="desc", limit=1)), "source_offset") == [5]


def test_rejects_of_one_time_are_in_order_of_their_place(store: StateStore) -> None:
    places = [(topic, number, offset) for topic in ("attempts", "spans") for number in (2, 10) for offset in (9, 10)]
    put(
        store,
        "RecordRejected",
        *[rejected(o, reason, source_topic=t, source_partition=p) for t, p, o in places[::-1] for reason in ("b", "a")],
    )
    expected = [(*place, reason) for place in places for reason in ("a", "b")]
    paged = []
    for offset in range(0, 17, 3):
        page = store.query_rejects(Query(limit=3, offset=offset))
        assert page.total == 16
        paged += [(e["source_topic"], e["source_partition"], e["source_offset"], e["reason_code"]) for e in page]
    assert paged == expected


def test_other_fields_of_rejects_cannot_be_asked(store: StateStore) -> None:
    for name in ("payload", "detail", "source_key", "event_id", "reject_key"):
        with pytest.raises(UsageError, match="rejects cannot be asked by"):
            store.query_rejects(Query((Condition(name, exact="x"),)))
        with pytest.raises(UsageError, match="rejects cannot be asked by"):
            store.query_rejects(Query(sort_by=name))


def test_a_payload_of_64_kilobytes_and_foreign_names(store: StateStore) -> None:
    event = rejected(1, "größer 🙂", source_topic="orders/eu\0x", payload=bytes(range(256)) * 256, rejected_by="")
    put(store, "RecordRejected", event)
    assert store.query_rejects(Query((Condition("reason_code", contains="🙂"),))).items == [event]
    assert store.query_rejects(Query((Condition("source_topic", within=["orders/eu\0x"]),))).items == [event]
