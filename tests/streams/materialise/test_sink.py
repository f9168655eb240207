"""The sink against a real broker: everything arrives, nothing twice, and its own offsets win."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer

from agl_stream.consumers.batch_loop import Partition
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.streams.materialise.app import SinkHandler, run_sink
from agl_stream.streams.store import open_store
from agl_stream.streams.store.sqlite import SqliteStore

from ..makers import START_US, Placed, attempt_state, ended, make, rollout, span
from ..running import Part, committed, read_all, settings_for, wait_until


@pytest.fixture
def settings(bootstrap_servers: str, registry_url: str, tmp_path: Path) -> Settings:
    return settings_for(bootstrap_servers, registry_url, tmp_path)


@pytest.fixture
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="test") as made:
        yield made


def send_spans(producer: EventProducer, count: int, start: int = 0) -> None:
    producer.deliver("spans", [(None, span(f"ro-{n % 50}", f"s{n}", n)) for n in range(start, start + count)])


def test_every_kind_of_event_becomes_readable(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 500)
    producer.deliver("rollouts", [(None, ended("ro-1", reward=1.0))])
    producer.deliver("triplets", [(None, make("TripletsJoined", rollout_id="ro-1", adapter="a"))])
    producer.deliver("resources", [(None, make("ResourcesPublished", resources_id="rs", version=1))])
    producer.deliver("workers", [(None, make("WorkerHeartbeat", worker_id="w"))])
    producer.deliver("batches", [(None, make("BatchTrained", learner_id="l", step=1))])
    raw = Producer({"bootstrap.servers": settings.bootstrap_servers})
    raw.produce(settings.topic("spans"), b"poison", partition=2)
    raw.flush(10)
    store = open_store(settings)
    wanted = {"rollouts": 1, "attempts": 1, "spans": 500, "triplets": 1, "resources": 1, "workers": 1, "batches": 1}
    with Part(run_sink, settings):
        # the sink's own reject of the poison comes back to it over the log
        wait_until(lambda: store.counts() == wanted | {"rejects": 1})
        wait_until(lambda: committed(settings, "sink", "spans") == 501)
    assert store.rejects_by_reason() == {"not_framed": 1}
    applied = store.applied_offsets()
    assert sum(offset for (topic, _), offset in applied.items() if topic == "spans") >= 500


def test_a_restart_goes_on_and_a_deleted_or_older_store_is_made_good(
    settings: Settings, producer: EventProducer, tmp_path: Path
) -> None:
    def spans() -> int:
        # closed at once, so that the file is whole when it is copied
        with closing(open_store(settings)) as store:
            return store.counts()["spans"]

    send_spans(producer, 200)
    with Part(run_sink, settings):
        wait_until(lambda: spans() == 200)
        wait_until(lambda: committed(settings, "sink", "spans") == 200)
    shutil.copy(tmp_path / "state.db", tmp_path / "older.db")
    send_spans(producer, 200, start=200)
    with Part(run_sink, settings):
        wait_until(lambda: spans() == 400)
        wait_until(lambda: committed(settings, "sink", "spans") == 400)

    # as after a power cut that took the last transactions: the group's commits are ahead of the store
    shutil.move(tmp_path / "older.db", tmp_path / "state.db")
    assert spans() == 200
    with Part(run_sink, settings):
        wait_until(lambda: spans() == 400)

    (tmp_path / "state.db").unlink()
    with Part(run_sink, settings):
        wait_until(lambda: spans() == 400)


def test_a_store_from_another_life_of_the_log_is_read_from_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(tmp_path / "state.db")
    store.apply([Placed("spans", 0, 99, span("ro", "a")), Placed("spans", 1, 4, span("ro", "b"))])
    mine = [Partition("spans", number) for number in range(3)]
    handler = SinkHandler(store, None, lambda asked: {p: 50 for p in asked})  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        assert handler.assigned(mine) == {mine[0]: OFFSET_BEGINNING, mine[1]: 5, mine[2]: OFFSET_BEGINNING}
    assert "spans partition 0 ends at 50 and the store had applied 100" in caplog.text
    # the old mark is gone: else a restart between 50 and 100 would skip what lies between
    assert store.applied_offsets() == {("spans", 1): 5}


def test_spans_show_an_attempt_to_be_running(settings: Settings, producer: EventProducer) -> None:
    quiet = rollout("ro-quiet", 2, "preparing", attempts=[attempt_state("ro-quiet", status="preparing")])
    known = rollout("ro-known", 2, "running", attempts=[attempt_state("ro-known", status="running")])
    producer.deliver("rollouts", [(None, quiet), (None, known)])
    producer.deliver("spans", [(None, span(name, f"s{n}", n)) for n in range(3) for name in ("ro-quiet", "ro-known")])
    with Part(run_sink, settings):
        wait_until(lambda: read_all(settings, "attempts"))
    (event,) = read_all(settings, "attempts")
    assert (event["rollout_id"], event["status"], event["producer"]["name"]) == ("ro-quiet", "running", "sink")
    assert event["occurred_at_us"] == START_US


def test_two_sinks_share_the_work(settings: Settings, producer: EventProducer) -> None:
    with Part(run_sink, settings), Part(run_sink, settings):
        send_spans(producer, 1000)
        wait_until(lambda: open_store(settings).counts()["spans"] == 1000)
        wait_until(lambda: committed(settings, "sink", "spans") == 1000)
