"""Triplets: the latest revision, whole, never calls of two revisions."""

from __future__ import annotations

import os

from agl_stream.streams.store import StateStore
from tests.conformance.store.events import joined, put


def test_they_come_back_whole(store: StateStore) -> None:
    event = joined(
        "ro-1", 3, reward=0.5, attempt_id="at-1", run_id="run-1", content_hash="abc",
        producer={"name": "joiner", "instance": "i", "version": "0"},
    )  # fmt: skip
    put(store, "TripletsJoined", event)
    assert store.get_triplets("ro-1") == event
    assert store.get_triplets("ro-none") is None


def test_calls_keep_their_order(store: StateStore) -> None:
    event = joined("ro-1", calls=1000)
    put(store, "TripletsJoined", event)
    found = store.get_triplets("ro-1")
    assert found is not None and [call["span_id"] for call in found["triplets"]] == [f"s{n}" for n in range(1000)]
    assert found == event


def test_calls_are_kept_in_the_order_told_not_sorted(store: StateStore) -> None:
    event = joined("ro-1", calls=12)
    event["triplets"].reverse()
    put(store, "TripletsJoined", event)
    assert store.get_triplets("ro-1") == event


def test_without_calls(store: StateStore) -> None:
    event = joined("ro-1", calls=0, reason_code="no_reward", reward=None)
    put(store, "TripletsJoined", event)
    assert store.get_triplets("ro-1") == event
    assert store.counts()["triplets"] == 1


def test_null_empty_and_zero_are_three_things(store: StateStore) -> None:
    event = joined("ro-1", calls=3, reward=0.0)
    event["triplets"][0] |= {"response_logprobs": None, "reward": None, "finish_reason": None}
    event["triplets"][1] |= {"response_logprobs": b"", "reward": 0.0, "finish_reason": "", "resources_version": 0}
    event["triplets"][2] |= {"prompt_token_ids": b"", "response_token_ids": b"", "resources_version": None}
    put(store, "TripletsJoined", event, joined("ro-2", reward=None))
    found, other = store.get_triplets("ro-1"), store.get_triplets("ro-2")
    assert found == event and other is not None
    assert (found["reward"], other["reward"]) == (0.0, None)


def test_calls_of_a_hundred_thousand_tokens(store: StateStore) -> None:
    event = joined("ro-1", calls=4)
    for call in event["triplets"]:
        call |= {"prompt_token_ids": os.urandom(400_000), "response_logprobs": os.urandom(4000)}
    put(store, "TripletsJoined", event)
    assert store.get_triplets("ro-1") == event


def test_a_greater_revision_replaces_header_and_calls(store: StateStore) -> None:
    put(store, "TripletsJoined", joined("ro-1", 0, calls=3))
    put(store, "TripletsJoined", joined("ro-1", 1, calls=1, reward=0.25), offset=1)
    assert store.get_triplets("ro-1") == joined("ro-1", 1, calls=1, reward=0.25)
    put(store, "TripletsJoined", joined("ro-1", 2, calls=5), offset=2)
    assert store.get_triplets("ro-1") == joined("ro-1", 2, calls=5)


def test_a_smaller_revision_that_comes_late_changes_nothing(store: StateStore) -> None:
    latest = joined("ro-1", 2, calls=1)
    put(store, "TripletsJoined", latest)
    put(store, "TripletsJoined", joined("ro-1", 1, calls=4), joined("ro-1", 0, calls=2), offset=1)
    assert store.get_triplets("ro-1") == latest


def test_revisions_out_of_order_within_one_batch(store: StateStore) -> None:
    put(store, "TripletsJoined", joined("ro-1", 0, calls=3), joined("ro-1", 2, calls=1), joined("ro-1", 1, calls=2))
    assert store.get_triplets("ro-1") == joined("ro-1", 2, calls=1)


def test_of_one_revision_the_one_made_from_more_spans_stays(store: StateStore) -> None:
    knew_more = joined("ro-1", 2, calls=4)
    put(store, "TripletsJoined", joined("ro-1", 2, calls=2))
    put(store, "TripletsJoined", knew_more, joined("ro-1", 2, calls=3), offset=1)
    assert store.get_triplets("ro-1") == knew_more
    put(store, "TripletsJoined", joined("ro-1", 3, calls=1), offset=3)
    assert store.get_triplets("ro-1") == joined("ro-1", 3, calls=1)


def test_the_same_again_changes_nothing(store: StateStore) -> None:
    for offset in range(3):
        put(store, "TripletsJoined", joined("ro-1"), joined("ro-1"), offset=offset)
    assert store.get_triplets("ro-1") == joined("ro-1")
    assert store.counts()["triplets"] == 1


def test_they_belong_to_their_rollout(store: StateStore) -> None:
    put(store, "TripletsJoined", *[joined(f"ro-{n}", calls=n) for n in range(6)], joined("", calls=7))
    for n in range(6):
        assert store.get_triplets(f"ro-{n}") == joined(f"ro-{n}", calls=n)
    assert store.get_triplets("") == joined("", calls=7)
    assert store.counts()["triplets"] == 7


def test_text_and_metadata_of_any_kind(store: StateStore) -> None:
    event = joined("rö-🙂", detail="Größe\n'\"%", group_id="工具")
    event["triplets"][0]["metadata"] = '{"工具": "\\u0000"}'
    put(store, "TripletsJoined", event)
    assert store.get_triplets("rö-🙂") == event
