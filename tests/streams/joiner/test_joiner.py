"""The joiner beside a sink on a real broker, and both killed in the middle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from agl_stream.errors import SettingError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.tokens import pack_floats
from agl_stream.settings import Settings
from agl_stream.streams.joiner.app import run_joiner
from agl_stream.streams.materialise.app import run_sink
from agl_stream.streams.store import open_store

from ..makers import attempt_state, llm_call, reward_span, rollout
from ..running import Part, committed, read_all, settings_for, spawn, wait_until


@pytest.fixture
def settings(bootstrap_servers: str, registry_url: str, tmp_path: Path) -> Settings:
    return settings_for(bootstrap_servers, registry_url, tmp_path)


@pytest.fixture
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="test") as made:
        yield made


def calls(rollout_id: str, count: int = 2) -> list[dict[str, Any]]:
    return [llm_call(rollout_id, f"s{n}", n, [1, n], [n, n + 1]) for n in range(count)]


def end(rollout_id: str, reward: float | None = 1.0, version: int = 5, **given: Any) -> dict[str, Any]:
    attempts = [attempt_state(rollout_id, 1, reward=reward, dispatched_at_us=now_us())]
    return rollout(rollout_id, version, "succeeded", attempts=attempts, **given)


def run_through(producer: EventProducer, *rollout_ids: str) -> None:
    """As a runner does: the spans are acknowledged before the end is told."""
    producer.deliver("spans", [(None, event) for rollout_id in rollout_ids for event in calls(rollout_id)])
    producer.deliver("rollouts", [(None, end(rollout_id)) for rollout_id in rollout_ids])


def test_a_rollout_is_joined_once_and_soon(settings: Settings, producer: EventProducer) -> None:
    with Part(run_joiner, settings), Part(run_sink, settings):
        store = open_store(settings)
        delays = []
        for n in range(20):
            producer.deliver("spans", [(None, event) for event in calls(f"ro-{n}")])
            producer.deliver("rollouts", [(None, end(f"ro-{n}", group_id="g"))])
            told = time.monotonic()
            wait_until(lambda n=n: store.get_triplets(f"ro-{n}"))
            delays.append(time.monotonic() - told)
        found = store.get_triplets("ro-7")
        wait_until(lambda: committed(settings, "joiner", "spans") == 40)
        wait_until(lambda: committed(settings, "joiner", "rollouts") == 20)
    assert found is not None and (found["reward"], found["group_id"], len(found["triplets"])) == (1.0, "g", 2)
    written = read_all(settings, "triplets")
    assert sorted(event["rollout_id"] for event in written) == sorted(f"ro-{n}" for n in range(20))
    assert {event["revision"] for event in written} == {0}
    # on a quiet machine 6 ms; the bound is for a busy one
    assert sorted(delays)[10] < 0.25


def test_late_spans_and_late_rewards_make_revisions(settings: Settings, producer: EventProducer) -> None:
    store = open_store(settings)

    def revision() -> int:
        found = store.get_triplets("ro-1")
        return -1 if found is None else found["revision"]

    with Part(run_joiner, settings), Part(run_sink, settings):
        producer.deliver("spans", [(None, event) for event in calls("ro-1")])
        producer.deliver("rollouts", [(None, end("ro-1", reward=None))])
        wait_until(lambda: revision() == 0)
        assert (store.get_triplets("ro-1") or {})["reason_code"] == "no_reward"
        producer.deliver("spans", [(None, reward_span("ro-1", "late", 9, 0.5))])
        wait_until(lambda: revision() == 1)
        # the same again says nothing new, a correction does
        producer.deliver("spans", [(None, reward_span("ro-1", "late", 9, 0.5))])
        producer.deliver("spans", [(None, reward_span("ro-1", "later", 10, 0.75))])
        wait_until(lambda: revision() == 2)
    # another joiner, which never saw the beginning
    with Part(run_joiner, settings), Part(run_sink, settings):
        producer.deliver("spans", [(None, reward_span("ro-1", "last", 11, 0.25))])
        wait_until(lambda: revision() == 3, 60)
    events = [event for event in read_all(settings, "triplets") if event["rollout_id"] == "ro-1"]
    told = [(event["revision"], event["reward"], event["reason_code"]) for event in events]
    assert told == [(0, None, "no_reward"), (1, 0.5, None), (2, 0.75, None), (3, 0.25, None)]


def test_spans_on_the_wrong_partition_are_brought_home(settings: Settings, producer: EventProducer) -> None:
    codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
    foreign = Producer({"bootstrap.servers": settings.bootstrap_servers})
    home = murmur2_partition(b"ro-1", settings.partitions)
    for event in calls("ro-1", 3):
        value = codec.encode("SpanRecorded", event)
        foreign.produce(settings.topic("spans"), value, partition=(home + 1) % settings.partitions)
    foreign.flush(10)
    producer.deliver("rollouts", [(None, end("ro-1"))])
    store = open_store(settings)
    with Part(run_joiner, settings), Part(run_sink, settings):
        wait_until(lambda: len((store.get_triplets("ro-1") or {"triplets": []})["triplets"]) == 3)
        wait_until(lambda: store.counts()["spans"] == 3)


def test_a_span_that_cannot_be_trained_on_is_a_reject_with_its_place(
    settings: Settings, producer: EventProducer
) -> None:
    bad = llm_call("ro-1", "bad", 1, [1], [2], response_logprobs=pack_floats([float("nan")]))
    producer.deliver("spans", [(None, bad)])
    producer.deliver("rollouts", [(None, end("ro-1"))])
    store = open_store(settings)
    with Part(run_joiner, settings), Part(run_sink, settings):
        wait_until(lambda: store.rejects_by_reason() == {"nan_logprob": 1})
        wait_until(lambda: store.get_triplets("ro-1"))
    found = store.get_triplets("ro-1")
    assert found is not None and (found["reason_code"], found["triplets"]) == ("nan_logprob", [])
    (reject,) = store.query_rejects()
    assert (reject["rollout_id"], reject["rejected_by"], reject["source_topic"]) == ("ro-1", "joiner", "spans")
    assert reject["source_partition"] == murmur2_partition(b"ro-1", settings.partitions)


def test_topics_that_do_not_fit_together_are_refused(bootstrap_servers: str, registry_url: str, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    settings = settings_for(bootstrap_servers, registry_url, tmp_path)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(settings.topic("rollouts"), 6)]).values():
        future.result(10)
    with pytest.raises(SettingError, match="spans and rollouts have 4 and 6 partitions"), Part(run_joiner, settings):
        pass


@pytest.mark.faults
def test_killed_in_the_middle_nothing_is_lost_and_nothing_said_twice(
    settings: Settings, producer: EventProducer
) -> None:
    settings = replace(settings, session_timeout_seconds=2.0)
    store = open_store(settings)
    names = [f"ro-{n}" for n in range(400)]
    process = spawn(settings, "streams", "--only", "sink,joiner")
    try:
        for start in range(0, 400, 40):
            run_through(producer, *names[start : start + 40])
            if start in (80, 240):
                process.kill()
                process.wait()
                run_through(producer, *names[start + 40 : start + 60])
                process = spawn(settings, "streams", "--only", "sink,joiner")
        wait_until(lambda: store.counts()["triplets"] == 400, 60)
        wait_until(lambda: committed(settings, "joiner", "spans") == len(read_all(settings, "spans")), 30)
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert store.counts()["spans"] == 800
    said: dict[str, set[tuple[int, str]]] = {}
    for event in read_all(settings, "triplets"):
        said.setdefault(event["rollout_id"], set()).add((event["revision"], event["content_hash"]))
    assert said.keys() == set(names)
    assert all(len(what) == 1 and {revision for revision, _ in what} == {0} for what in said.values())
