"""The database dies, is paused, or is away for a while; nothing is lost and nothing has to be started again.

AGL_STREAM_OUTAGE_SECONDS=60 makes the outage as long as the promise is (10 by default).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_stream.errors import EngineUnreachable
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.fixtures import running
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.streams.materialise.app import run_sink
from agl_stream.streams.store import StateStore, open_store
from agl_stream.streams.store.layout import apply_store

from ..makers import Placed, ended, place, rollout, span
from ..running import Part, settings_for
from .cassandra_keyspace import fresh_keyspace

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.timeout(600)]

OUTAGE_SECONDS = float(os.environ.get("AGL_STREAM_OUTAGE_SECONDS", "10"))


@pytest.fixture(scope="module")
def node() -> Iterator[Cassandra]:
    """A node to be killed; nobody else's."""
    with running("cassandra", Cassandra) as engine:
        yield engine


@pytest.fixture
def settings(node: Cassandra) -> Iterator[Settings]:
    with fresh_keyspace(node.contact_points) as made:
        apply_store(made)
        yield made


def wait_until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def persistently(store: StateStore, batch: list[Placed]) -> None:
    """As the batch loop does: until the database is there."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return store.apply(batch)
        except EngineUnreachable:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_writes(node: Cassandra, settings: Settings) -> None:
    store = open_store(settings, read_only=False)
    acknowledged: list[int] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            try:
                store.apply(
                    [Placed("spans", 0, n + k, span(f"ro-{n}", f"s{k}", attributes="x" * 900)) for k in range(50)]
                )
                store.apply([place("RolloutStateChanged", rollout(f"ro-{n}"), 0, n)])
            except EngineUnreachable as error:
                failures.append(error)
                return
            acknowledged.append(n)
            n += 50

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(acknowledged) >= 20)
    node.nodes[0].kill()
    writer.join(60)
    stop.set()
    assert not writer.is_alive()
    assert len(failures) == 1 and "AGL_STREAM_STORE_URL" in str(failures[0])
    node.nodes[0].start()
    node.nodes[0].wait_ready()
    # the same handle goes on by itself
    wait_until(lambda: _answers(store))
    for n in acknowledged:
        assert len(store.get_spans(f"ro-{n}")) == 50
        assert store.get_rollout(f"ro-{n}") == rollout(f"ro-{n}")
    # the batch under way when the node died may have been written, all but the answer
    assert store.applied_offset("spans", 0) in (acknowledged[-1] + 50, acknowledged[-1] + 100)
    # what was not acknowledged comes again
    last = acknowledged[-1] + 50
    persistently(store, _spans(last))
    assert len(store.get_spans(f"ro-{last}")) == 50
    store.close()


def test_a_paused_node_is_unreachable_and_then_there_again(node: Cassandra, settings: Settings) -> None:
    store = open_store(settings, read_only=False)
    store.apply([place("RolloutStateChanged", rollout("ro-1"))])
    node.nodes[0].pause()
    try:
        with pytest.raises(EngineUnreachable):
            store.apply([place("RolloutStateChanged", ended("ro-1", 3), 0, 1)])
    finally:
        node.nodes[0].resume()
    persistently(store, [place("RolloutStateChanged", ended("ro-1", 3), 0, 1)])
    assert store.get_rollout("ro-1") == ended("ro-1", 3)
    store.close()


def test_a_sink_outlasts_its_store(
    node: Cassandra, settings: Settings, bootstrap_servers: str, registry_url: str, tmp_path: Path
) -> None:
    """The sink starts while the store is away, loses it under load, and is never started again."""
    ours = settings_for(bootstrap_servers, registry_url, tmp_path)
    with fresh_keyspace(node.contact_points, namespace=ours.namespace) as keyspace:
        apply_store(keyspace)
        ours = Settings(**{**vars(ours), "store_url": keyspace.store_url})
        node.nodes[0].kill()
        sink = Part(run_sink, ours)
        sink._thread.start()
        with EventProducer(ours, name="test") as producer:
            sent = _send(producer, 0, 1000)
            time.sleep(1.0)  # it must not have ended meanwhile: there is no event to wait for
            assert sink._thread.is_alive() and not sink.ready.is_set()
            node.nodes[0].start()
            node.nodes[0].wait_ready()
            wait_until(sink.ready.is_set)
            store = open_store(ours)
            wait_until(lambda: _applied(store) > 0)
            node.nodes[0].kill()
            away_until = time.monotonic() + OUTAGE_SECONDS
            while time.monotonic() < away_until:
                sent += _send(producer, len(sent), 200)
                time.sleep(0.1)
            assert sink._thread.is_alive(), sink.error
            node.nodes[0].start()
            node.nodes[0].wait_ready()
            began = time.monotonic()
            wait_until(lambda: _applied(store) == len(sent))
            print(f"caught up {time.monotonic() - began:.1f} s after the store was back")
            assert all(len(store.get_spans(f"ro-{n}")) == 10 for n in range(0, len(sent) // 10))
            assert store.counts()["spans"] == len(sent)
            store.close()
        sink.stop.set()
        sink._thread.join(60)
        assert not sink._thread.is_alive() and sink.error is None


def _send(producer: EventProducer, first: int, count: int) -> list[int]:
    numbers = list(range(first, first + count))
    for n in numbers:
        producer.send("spans", span(f"ro-{n // 10}", f"s{n}", n, attributes="x" * 900), key=f"ro-{n // 10}")
    producer.flush()
    return numbers


def _spans(first: int) -> list[Placed]:
    """Fifty of one rollout."""
    return [Placed("spans", 0, first + k, span(f"ro-{first}", f"s{k}", attributes="x" * 900)) for k in range(50)]


def _answers(store: StateStore) -> bool:
    try:
        store.applied_offsets()
    except EngineUnreachable:
        return False
    return True


def _applied(store: StateStore) -> int:
    try:
        return sum(offset for (topic, _), offset in store.applied_offsets().items() if topic == "spans")
    except EngineUnreachable:
        return -1
