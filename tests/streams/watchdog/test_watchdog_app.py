"""Watchdog and lifecycle as one process: what the clock says reaches the rollouts, and nothing else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.ids import new_rollout_id
from agl_stream.settings import Settings

from ..lifecycle.system import PARTITIONS, LogView, Worker, fresh_settings, report, wait_for
from ..lifecycle.test_lifecycle_app import config

pytestmark = pytest.mark.faults


@pytest.fixture
def settings(broker: BrokerThread, tmp_path: Path) -> Settings:
    return fresh_settings(
        tmp_path,
        broker.bootstrap_servers,
        broker.registry_url,
        watchdog_interval_seconds=0.2,
        claim_lease_seconds=2.0,
    )


@pytest.fixture
def world(settings: Settings) -> Iterator[tuple[EventProducer, LogView]]:
    with (
        EventProducer(settings, name="test", linger_ms=0.0) as producer,
        LogView(settings, "rollouts", "dispatch", "attempts", "controls", "rejects") as view,
    ):
        yield producer, view


def claim(offer: dict[str, Any], worker: str) -> dict[str, Any]:
    return report(offer, "preparing", worker_id=worker, worker_instance=f"{worker}-1")


def test_what_the_clock_says(settings: Settings, world: tuple[EventProducer, LogView]):
    producer, view = world
    limits = {
        "timed out": config(timeout_seconds=1.0, max_attempts=2, retry_condition=["timeout"]),
        "silent": config(unresponsive_seconds=1.0),
        "alive": config(unresponsive_seconds=2.0),
        "lost": config(max_attempts=2, retry_condition=["unresponsive"]),
        "dropped": config(),
        "backing off": config(max_attempts=2, retry_condition=["failed"], backoff_seconds=1.0),
    }
    ids = {name: new_rollout_id() for name in limits}

    def attempts(name: str) -> list[dict[str, Any]]:
        return view.states().get(ids[name], {}).get("attempts", [])

    def offers(name: str) -> list[dict[str, Any]]:
        return [event for event in view.events("dispatch") if event["rollout_id"] == ids[name]]

    with Worker(settings, only="lifecycle,watchdog") as worker, Beats(producer) as beats:
        worker.wait_ready()
        for name, limit in limits.items():
            producer.send("rollout-requests", {"rollout_id": ids[name], "input": "1", "config": limit})
        wait_for(lambda: all(offers(name) for name in ids), 20, "all are dispatched")
        for name in ("timed out", "silent", "alive", "lost", "backing off"):
            producer.send("attempts", claim(offers(name)[0], name.replace(" ", "-")))
        beats.hold(offers("alive")[0])
        producer.send("attempts", report(offers("backing off")[0], "failed", reason_code="agent_error"))
        failed_at = time.monotonic()
        producer.send("workers", heartbeat("lost", "lost-2", []))
        consume_without_claiming(settings)

        wait_for(lambda: len(offers("backing off")) == 2, 20, "the backoff ends")
        assert time.monotonic() - failed_at >= 1.0
        wait_for(lambda: len(attempts("timed out")) == 2, 20, "the time limit leads to another attempt")
        assert attempts("timed out")[0]["status"] == "timeout"
        wait_for(lambda: view.states()[ids["silent"]]["status"] == "failed", 20, "silence is noticed")
        assert view.states()[ids["silent"]]["reason_code"] == "attempt_unresponsive"
        wait_for(lambda: len(attempts("lost")) == 2, 20, "the lost worker is noticed")
        assert attempts("lost")[0]["reason_code"] == "worker_lost"
        wait_for(lambda: len(offers("dropped")) >= 2, 20, "what nobody took is offered again")
        assert [offer["delivery"] for offer in offers("dropped")][:2] == [1, 2]
        assert offers("dropped")[0]["attempt_id"] == offers("dropped")[1]["attempt_id"]

        worker.kill()
        with Worker(settings, only="lifecycle,watchdog") as again:
            again.wait_ready()
            producer.send("attempts", report(offers("timed out")[1], "succeeded"))
            wait_for(lambda: view.states()[ids["timed out"]]["status"] == "succeeded", 20, "life goes on")
            seen = len(view.events("attempts"))
            time.sleep(3.0)  # longer than the silence allowed, twice over for an attempt that nobody heard of
            assert view.states()[ids["alive"]]["status"] == "preparing"
            assert len(view.events("attempts")) == seen
            assert again.terminate() == 0
    spoken = [event["event_id"] for event in view.events("attempts") if event["producer"]["name"] == "watchdog"]
    assert len(spoken) == len(set(spoken)) == 3, "each thing is said once"
    assert view.events("rejects") == []


class Beats(threading.Thread):
    """A worker's heartbeats, every 0.3 s, for the attempts it holds."""

    def __init__(self, producer: EventProducer) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._held: list[dict[str, Any]] = []
        self._over = threading.Event()

    def hold(self, offer: dict[str, Any]) -> None:
        self._held = [*self._held, {name: offer[name] for name in ("rollout_id", "attempt_id")}]

    def run(self) -> None:
        while not self._over.wait(0.3):
            self._producer.send("workers", heartbeat("alive", "alive-1", self._held))

    def __enter__(self) -> Beats:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(5)


def heartbeat(worker: str, instance: str, held: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "worker_id": worker,
        "worker_instance": instance,
        "role": "runner",
        "interval_seconds": 1.0,
        "attempts": held,
    }


def consume_without_claiming(settings: Settings) -> None:
    """The runners' group moves past everything on the dispatch topic, and nobody says a word."""
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group("runners")})
    topic = settings.topic("dispatch")
    ends = [
        TopicPartition(topic, number, consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1])
        for number in range(PARTITIONS)
    ]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()
