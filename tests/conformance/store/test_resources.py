"""Versions of resources: each one by itself, the greatest of a set, the latest of all."""

from __future__ import annotations

import pytest

from agl_stream.errors import UsageError
from agl_stream.streams.store import Condition, Query, StateStore
from tests.conformance.store.events import START_US, ids, published, put


def test_a_version_comes_back_whole(store: StateStore) -> None:
    event = published(
        2**31 - 1, resources='{"prompt": "größer 🙂"}', run_id="run-1", learner_id="l", step=2**40,
        weights={"uri": "file:///w", "sha256": "ab", "format": "safetensors"},
        producer={"name": "trainer", "instance": "i", "version": "0"},
    )  # fmt: skip
    put(store, "ResourcesPublished", event)
    assert store.get_resources("rs-1", 2**31 - 1) == event
    assert store.query_resources().items == [event]


def test_what_was_never_published_is_none(store: StateStore) -> None:
    assert store.latest_resources() is None
    assert store.latest_resources("rs-1") is None
    put(store, "ResourcesPublished", published(2))
    assert store.get_resources("rs-1", 1) is None
    assert store.get_resources("rs-2", 2) is None
    assert store.latest_resources("rs-2") is None


def test_versions_come_in_any_order(store: StateStore) -> None:
    for offset, version in enumerate((3, 1, 10, 2, 9)):
        put(store, "ResourcesPublished", published(version, START_US + version), offset=offset)
    assert ids(store.query_resources(), "version") == [1, 2, 3, 9, 10]
    latest = store.latest_resources("rs-1")
    assert latest is not None and latest["version"] == 10
    for version in (1, 2, 3, 9, 10):
        assert store.get_resources("rs-1", version) == published(version, START_US + version)


def test_the_greatest_version_is_the_latest_of_its_set_whenever_published(store: StateStore) -> None:
    put(store, "ResourcesPublished", published(5, START_US), published(4, START_US + 100))
    latest = store.latest_resources("rs-1")
    assert latest is not None and latest["version"] == 5


def test_the_latest_of_all_is_the_last_published(store: StateStore) -> None:
    put(
        store,
        "ResourcesPublished",
        *[published(7, START_US, "rs-1"), published(1, START_US + 50, "rs-2"), published(3, START_US + 20, "rs-3")],
    )
    latest = store.latest_resources()
    assert latest is not None and (latest["resources_id"], latest["version"]) == ("rs-2", 1)


def test_published_at_the_same_time_the_greater_version_then_the_greater_name_is_the_latest(store: StateStore) -> None:
    put(store, "ResourcesPublished", *[published(v, START_US, name) for v, name in ((2, "b"), (2, "c"), (2, "a"))])
    latest = store.latest_resources()
    assert latest is not None and latest["resources_id"] == "c"
    put(store, "ResourcesPublished", published(3, START_US, "a"), offset=3)
    latest = store.latest_resources()
    assert latest is not None and (latest["resources_id"], latest["version"]) == ("a", 3)


def test_a_version_published_again_is_the_later_publication(store: StateStore) -> None:
    """As on the compacted topic, of which only the last record of a key is left."""
    first, again = published(2, START_US), published(2, START_US + 9, resources='{"x": 1}', run_id="run-2")
    put(store, "ResourcesPublished", first, again)
    assert store.get_resources("rs-1", 2) == again
    put(store, "ResourcesPublished", first, offset=2)
    assert store.get_resources("rs-1", 2) == again
    assert store.latest_resources() == store.latest_resources("rs-1") == again
    assert store.query_resources(Query((Condition("run_id", exact="run-2"),))).items == [again]
    assert store.query_resources(Query((Condition("run_id", exact=None),))).items == []
    assert store.counts()["resources"] == 1


def test_by_default_sets_in_order_and_versions_in_order(store: StateStore) -> None:
    put(
        store,
        "ResourcesPublished",
        *[published(version, START_US - version, name) for name in ("rs-b", "rs-a", "rs-c") for version in (2, 10, 1)],
    )
    found = [(event["resources_id"], event["version"]) for event in store.query_resources()]
    assert found == [(name, version) for name in ("rs-a", "rs-b", "rs-c") for version in (1, 2, 10)]
    assert [(e["resources_id"], e["version"]) for e in store.query_resources(Query(sort_order="desc"))] == found[::-1]


def test_pages_of_resources(store: StateStore) -> None:
    put(store, "ResourcesPublished", *[published(n % 5 + 1, START_US, f"rs-{n // 5}") for n in range(25)])
    by_version = Query((Condition("version", within=[1, 2, 3]),), sort_by="version", sort_order="desc", limit=4)
    paged: list[tuple[str, int]] = []
    for offset in range(0, 16, 4):
        page = store.query_resources(Query(**{**vars(by_version), "offset": offset}))
        assert page.total == 15
        paged += [(event["resources_id"], event["version"]) for event in page]
    assert paged == [(f"rs-{k}", version) for version in (3, 2, 1) for k in (4, 3, 2, 1, 0)]


def test_other_fields_of_resources_cannot_be_asked(store: StateStore) -> None:
    for name in ("resources", "weights", "learner_id", "event"):
        with pytest.raises(UsageError, match="resources cannot be asked by"):
            store.query_resources(Query((Condition(name, exact="x"),)))
        with pytest.raises(UsageError, match="resources cannot be asked by"):
            store.query_resources(Query(sort_by=name))


def test_resources_of_half_a_megabyte_and_with_an_empty_id(store: StateStore) -> None:
    large = published(1, resources='"' + "p" * 500_000 + '"')
    nameless = published(1, START_US + 1, "")
    put(store, "ResourcesPublished", large, nameless)
    assert store.get_resources("rs-1", 1) == large
    assert store.get_resources("", 1) == store.latest_resources("") == store.latest_resources() == nameless
