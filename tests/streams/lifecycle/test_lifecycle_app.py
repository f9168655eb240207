"""The lifecycle on Faust against the embedded broker: what it does with good, foreign and broken records."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import attempt_id, derived_rollout_id, new_rollout_id
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.registry import RegistryClient
from agl_stream.settings import Settings
from agl_stream.streams.lifecycle.app import run_lifecycle
from agl_stream.streams.store import open_store

from ..makers import Placed
from .system import PARTITIONS, LogView, fresh_settings, report, wait_for


class Scene(NamedTuple):
    settings: Settings
    producer: EventProducer
    view: LogView

    def request(self, rollout_id: str | None = None, **fields: Any) -> str:
        rollout_id = rollout_id or new_rollout_id()
        self.producer.send("rollout-requests", {"rollout_id": rollout_id, "input": '"6*7"', **fields})
        return rollout_id

    def offers(self, rollout_id: str) -> list[dict[str, Any]]:
        return [event for event in self.view.events("dispatch") if event["rollout_id"] == rollout_id]

    def offer(self, rollout_id: str) -> dict[str, Any]:
        wait_for(lambda: self.offers(rollout_id), 15, f"{rollout_id} is dispatched")
        return self.offers(rollout_id)[-1]

    def report(self, offer: dict[str, Any], status: str, **fields: Any) -> None:
        self.producer.send("attempts", report(offer, status, **fields))

    def wait_status(self, rollout_id: str, status: str) -> dict[str, Any]:
        wait_for(
            lambda: self.view.states().get(rollout_id, {}).get("status") == status,
            15,
            f"{rollout_id} is {status}",
        )
        return self.view.states()[rollout_id]

    def wait_reject(self, **fields: Any) -> dict[str, Any]:
        def matching() -> list[dict[str, Any]]:
            return [e for e in self.view.events("rejects") if all(e[name] == value for name, value in fields.items())]

        wait_for(matching, 15, f"a reject with {fields}")
        return matching()[0]


@pytest.fixture(scope="module")
def scene(broker: BrokerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    settings = fresh_settings(
        tmp_path_factory.mktemp("lifecycle"),
        broker.bootstrap_servers,
        broker.registry_url,
        closed_grace_seconds=1.0,
        early_hold_seconds=4.0,
    )
    stop, ready = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_lifecycle(settings, stop, ready.set)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(40), failures
    with (
        EventProducer(settings, name="test", linger_ms=0.0) as producer,
        LogView(settings, "rollouts", "dispatch", "rejects") as view,
    ):
        yield Scene(settings, producer, view)
    stop.set()
    thread.join(30)
    assert not thread.is_alive() and not failures


def test_from_request_to_success(scene: Scene):
    rollout_id = scene.request(mode="train", group_id="gr-1", group_size=2, run_id="run-1", metadata='{"a": 1}')
    offer = scene.offer(rollout_id)
    assert offer["attempt_id"] == attempt_id(rollout_id, 1) and offer["delivery"] == 1
    assert (offer["input"], offer["group_id"], offer["run_id"]) == ('"6*7"', "gr-1", "run-1")
    scene.wait_status(rollout_id, "queuing")
    scene.report(offer, "preparing", worker_id="w", worker_instance="w-1")
    assert scene.wait_status(rollout_id, "preparing")["attempts"][0]["worker_id"] == "w"
    scene.report(offer, "running")
    scene.wait_status(rollout_id, "running")
    scene.report(offer, "succeeded", reward=1.0)
    state = scene.wait_status(rollout_id, "succeeded")
    assert state["attempts"][0]["reward"] == 1.0 and state["ended_at_us"] == state["attempts"][0]["ended_at_us"]
    assert len(scene.offers(rollout_id)) == 1


def test_retries_follow_the_request(scene: Scene):
    rollout_id = scene.request(config=config(max_attempts=2, retry_condition=["failed"]))
    first = scene.offer(rollout_id)
    scene.report(first, "failed", reason_code="agent_error", detail="ValueError: no")
    wait_for(lambda: len(scene.offers(rollout_id)) == 2, 15, "the second attempt is dispatched")
    second = scene.offer(rollout_id)
    assert second["attempt_number"] == 2
    scene.report(second, "failed", reason_code="agent_error")
    state = scene.wait_status(rollout_id, "failed")
    assert state["reason_code"] == "agent_error"
    assert [attempt["status"] for attempt in state["attempts"]] == ["failed", "failed"]


def test_a_cancel_ends_a_rollout_that_waits(scene: Scene):
    rollout_id = scene.request()
    offer = scene.offer(rollout_id)
    scene.producer.send("controls", {"rollout_id": rollout_id, "action": "cancel", "attempt_id": None})
    scene.wait_status(rollout_id, "cancelled")
    scene.report(offer, "succeeded", reward=1.0)
    wait_for(
        lambda: scene.view.states()[rollout_id]["attempts"][0]["status"] == "succeeded", 15, "the late success is shown"
    )
    assert scene.view.states()[rollout_id]["status"] == "cancelled"


def test_resources_are_pinned_as_they_are_at_the_request(scene: Scene):
    without = scene.request()
    assert scene.offer(without)["resources_id"] is None
    for version in (1, 2):
        scene.producer.deliver("resources", [(None, {"resources_id": "rs-1", "version": version})])
        rollout_id = scene.request()
        offer = scene.offer(rollout_id)
        assert (offer["resources_id"], offer["resources_version"]) == ("rs-1", version)
    fixed = scene.request(resources_id="rs-1", resources_version=1)
    assert scene.offer(fixed)["resources_version"] == 1


def test_resources_that_do_not_exist_end_the_rollout(scene: Scene):
    rollout_id = scene.request(resources_id="rs-none", resources_version=7)
    state = scene.wait_status(rollout_id, "failed")
    assert state["reason_code"] == "unknown_resources" and state["attempts"] == []
    reject = scene.wait_reject(rollout_id=rollout_id)
    assert reject["reason_code"] == "unknown_resources" and reject["rejected_by"] == "lifecycle"
    assert scene.offers(rollout_id) == []


def test_a_request_that_is_no_json_ends_the_rollout(scene: Scene):
    rollout_id = scene.request(input="{no json")
    state = scene.wait_status(rollout_id, "failed")
    assert state["reason_code"] == "bad_json" and json.loads(state["input"]) is None


def test_a_request_with_limits_that_are_no_numbers_ends_the_rollout_and_nothing_else(scene: Scene):
    rollout_id = scene.request(config={"backoff_seconds": math.nan, "unresponsive_seconds": math.inf})
    state = scene.wait_status(rollout_id, "failed")
    assert state["reason_code"] == "bad_config" and state["config"]["backoff_seconds"] == 0.0
    assert scene.wait_reject(rollout_id=rollout_id)["detail"] == "config.unresponsive_seconds cannot be inf"
    assert scene.offer(scene.request())["attempt_number"] == 1


def test_foreign_partitions_and_missing_ids(scene: Scene):
    """A writer with another partitioner and no ids at all: its events find the rollout's home."""
    rollout_id = new_rollout_id()
    home = murmur2_partition(rollout_id.encode(), PARTITIONS)
    scene.producer.send("rollout-requests", {"rollout_id": rollout_id, "input": "1"}, partition=(home + 1) % PARTITIONS)
    offer = scene.offer(rollout_id)
    scene.producer.send("attempts", report(offer, "succeeded"), partition=(home + 2) % PARTITIONS)
    scene.wait_status(rollout_id, "succeeded")
    assert len(scene.offers(rollout_id)) == 1

    codec = Codec(RegistryClient(scene.settings.registry_url, namespace=scene.settings.namespace, register=True))
    place: list[Any] = []
    raw = Producer({"bootstrap.servers": scene.settings.bootstrap_servers})
    empty = {"event_id": "", "occurred_at_us": 0, "rollout_id": "", "input": '"anonymous"'}
    raw.produce(
        scene.settings.topic("rollout-requests"),
        codec.encode("RolloutRequested", empty),
        partition=1,
        on_delivery=lambda error, message: place.append(message),
    )
    assert raw.flush(10) == 0
    derived = derived_rollout_id("rollout-requests", 1, place[0].offset())
    assert scene.offer(derived)["input"] == '"anonymous"'
    assert scene.wait_status(derived, "queuing")["requested_at_us"] == place[0].timestamp()[1] * 1000


def test_broken_records_become_rejects_and_nothing_stops(scene: Scene):
    codec = Codec(RegistryClient(scene.settings.registry_url, namespace=scene.settings.namespace, register=True))
    good = codec.encode("RolloutRequested", {"rollout_id": "ro-x", "input": "1"})
    span = codec.encode("ResourcesPublished", {"resources_id": "rs", "version": 1})
    broken = {
        b"not avro": "not_framed",
        b"\x00\x00\x0f\x42\x40body": "unknown_schema",
        good[:-3]: "undecodable",
        span: "wrong_event",
    }
    raw = Producer({"bootstrap.servers": scene.settings.bootstrap_servers})
    for topic in ("rollout-requests", "controls", "attempts"):
        for value in broken:
            raw.produce(scene.settings.topic(topic), value, key=b"ro-x", partition=0)
        raw.produce(scene.settings.topic(topic), None, key=b"ro-x", partition=0)
    assert raw.flush(10) == 0
    for topic in ("controls", "attempts"):
        for value, reason_code in broken.items():
            wanted = "wrong_event" if value == good else reason_code
            reject = scene.wait_reject(source_topic=topic, reason_code=wanted, payload=value) if wanted else {}
            assert reject["source_partition"] == 0 and reject["source_key"] == b"ro-x"
        scene.wait_reject(source_topic=topic, payload=None, reason_code="not_framed")
    scene.offer(scene.request())


def test_events_for_nothing_wait_and_are_rejected_in_the_end(scene: Scene):
    early = new_rollout_id()
    scene.producer.send("controls", {"rollout_id": early, "action": "cancel", "attempt_id": None})
    scene.producer.send("controls", {"rollout_id": "ro-nobody", "action": "cancel", "attempt_id": None})
    scene.producer.flush()
    scene.request(early)
    scene.wait_status(early, "cancelled")
    assert scene.offers(early) == []
    assert scene.wait_reject(rollout_id="ro-nobody")["reason_code"] == "unknown_rollout"


def test_ended_rollouts_leave_the_table_and_stay_ended(scene: Scene):
    """The state store remembers what the table forgets."""
    rollout_id = scene.request()
    offer = scene.offer(rollout_id)
    scene.report(offer, "succeeded", reward=0.5)
    state = scene.wait_status(rollout_id, "succeeded")
    store = open_store(scene.settings, read_only=False)
    try:
        store.apply([Placed("rollouts", 0, offset, e) for offset, e in enumerate(scene.view.events("rollouts"))])
    finally:
        store.close()

    def answered_late() -> bool:
        scene.report(offer, "succeeded", reward=0.5)
        return any(
            e["rollout_id"] == rollout_id and e["reason_code"] == "late_event" for e in scene.view.events("rejects")
        )

    wait_for(answered_late, 15, "the rollout has left the table")
    scene.request(rollout_id)
    scene.offer(scene.request())
    assert len(scene.offers(rollout_id)) == 1
    assert scene.view.states()[rollout_id] == state


def config(**fields: Any) -> dict[str, Any]:
    return {
        "timeout_seconds": None,
        "unresponsive_seconds": None,
        "max_attempts": 1,
        "retry_condition": [],
        "backoff_seconds": 0.0,
        **fields,
    }


def test_topics_that_cannot_meet_are_refused(broker: BrokerThread, tmp_path: Path):
    from agl_stream.errors import EngineUnreachable, SettingError
    from agl_stream.streams.lifecycle.faust_app import prepare_topics

    settings = fresh_settings(tmp_path, broker.bootstrap_servers, broker.registry_url)
    assert prepare_topics(settings) == PARTITIONS
    assert prepare_topics(settings) == PARTITIONS

    nowhere = Settings.load(
        bootstrap_servers=broker.bootstrap_servers, namespace="nowhere", connect_timeout_seconds=5.0
    )
    with pytest.raises(EngineUnreachable, match="topics apply"):
        prepare_topics(nowhere)

    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    uneven = {"uneven.rollout-requests": 2, "uneven.controls": 2, "uneven.attempts": 3}
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in uneven.items()]).values():
        future.result(10)
    with pytest.raises(SettingError, match=r"uneven\.attempts 3"):
        prepare_topics(Settings.load(bootstrap_servers=broker.bootstrap_servers, namespace="uneven"))
