"""What the log cannot take, by size or by schema, neither stops the joiner nor goes without a word."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.reasons import REASONS
from agl_stream.schemas.registry import RegistryClient
from agl_stream.settings import Settings
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.app import run_joiner
from agl_stream.streams.joiner.outcome import content_hash, ending_of, join
from agl_stream.streams.joiner.spans import view_of
from agl_stream.streams.joiner.writer import Outgoing, Writer
from agl_stream.streams.materialise.app import run_sink
from agl_stream.streams.store import open_store

from ..makers import ended, llm_call
from ..running import Part, committed, read_all, settings_for, wait_until

LIMIT_BYTES = 1_200_000


@pytest.fixture
def settings(bootstrap_servers: str, registry_url: str, tmp_path: Path) -> Settings:
    return settings_for(bootstrap_servers, registry_url, tmp_path, max_record_bytes=LIMIT_BYTES)


@pytest.fixture
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="test") as made:
        yield made


def calls(rollout_id: str, count: int, prompt_tokens: int) -> list[dict[str, Any]]:
    # ids that do not compress: a broker's limit is on what it is sent
    draw = random.Random(prompt_tokens)
    ids = [draw.randrange(2**31) for _ in range(prompt_tokens + count - 1)]
    return [llm_call(rollout_id, f"{rollout_id}-{n}", n, ids[n : n + prompt_tokens], [n, n + 1]) for n in range(count)]


def run_through(producer: EventProducer, rollout_id: str, count: int, prompt_tokens: int) -> None:
    producer.deliver("spans", [(None, event) for event in calls(rollout_id, count, prompt_tokens)])
    producer.deliver("rollouts", [(None, ended(rollout_id, reward=1.0))])


def triplets_of(rollout_id: str) -> dict[str, Any]:
    views = [view_of(event, 0, n) for n, event in enumerate(calls(rollout_id, 2, 10))]
    ending = ending_of(ended(rollout_id, reward=1.0))
    return join(rollout_id, ending, [view for view in views if view], 2, 0, LlmCalls()).revised(0)


def test_a_rollout_too_long_for_a_record_is_joined_without_triplets_and_the_next_ones_follow(
    settings: Settings, producer: EventProducer
) -> None:
    store = open_store(settings)
    run_through(producer, "ro-long", 25, 20_000)
    with Part(run_joiner, settings), Part(run_sink, settings):
        run_through(producer, "ro-short", 2, 10)
        wait_until(lambda: store.get_triplets("ro-long") and store.get_triplets("ro-short"))
        wait_until(lambda: store.rejects_by_reason() == {"record_too_large": 1})
        wait_until(lambda: committed(settings, "joiner", "spans") == 27)
        wait_until(lambda: committed(settings, "joiner", "rollouts") == 2)
    long = store.get_triplets("ro-long") or {}
    assert (long["status"], long["reason_code"], long["triplets"]) == ("succeeded", "record_too_large", [])
    assert "500,000 prompt and 50 response tokens" in long["detail"]
    assert len((store.get_triplets("ro-short") or {})["triplets"]) == 2
    (reject,) = store.query_rejects()
    assert (reject["rollout_id"], reject["source_topic"], reject["detail"]) == ("ro-long", "spans", long["detail"])
    assert len(read_all(settings, "triplets")) == 2


def test_a_span_too_large_to_be_brought_home_is_a_reject_at_its_place(
    settings: Settings, producer: EventProducer
) -> None:
    codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
    foreign = Producer({"bootstrap.servers": settings.bootstrap_servers, "message.max.bytes": 10_000_000})
    wrong = (murmur2_partition(b"ro-1", settings.partitions) + 1) % settings.partitions
    (huge,) = calls("ro-1", 1, 400_000)
    foreign.produce(settings.topic("spans"), codec.encode("SpanRecorded", huge), partition=wrong)
    foreign.flush(10)
    store = open_store(settings)
    with Part(run_joiner, settings), Part(run_sink, settings):
        run_through(producer, "ro-2", 2, 10)
        wait_until(lambda: store.get_triplets("ro-2"))
        wait_until(lambda: store.rejects_by_reason() == {"record_too_large": 1})
    (reject,) = store.query_rejects()
    assert (reject["source_topic"], reject["source_partition"], reject["source_offset"]) == ("spans", wrong, 0)
    assert (reject["rollout_id"], reject["attempt_id"], reject["payload"]) == ("ro-1", huge["attempt_id"], None)


def test_a_broker_that_takes_smaller_records_than_the_setting_says(settings: Settings, producer: EventProducer) -> None:
    resource = ConfigResource(ResourceType.TOPIC, settings.topic("triplets"))
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)
    store = open_store(settings)
    with Part(run_joiner, settings), Part(run_sink, settings):
        run_through(producer, "ro-1", 2, 20_000)
        wait_until(lambda: store.get_triplets("ro-1"))
        wait_until(lambda: store.rejects_by_reason() == {"record_too_large": 1})
    found = store.get_triplets("ro-1") or {}
    assert (found["reason_code"], found["triplets"]) == ("record_too_large", [])
    assert "max.message.bytes" in found["detail"]


def test_what_does_not_fit_its_schema_is_replaced_and_the_rest_is_written(
    settings: Settings, producer: EventProducer
) -> None:
    unfit, fine = triplets_of("ro-unfit"), triplets_of("ro-fine")
    unfit["triplets"][0]["finish_reason"] = 5
    write = Writer(producer)
    write([Outgoing("triplets", unfit), Outgoing("triplets", fine)])
    written = {event["rollout_id"]: event for event in read_all(settings, "triplets")}
    assert written["ro-fine"]["triplets"] == fine["triplets"]
    other = written["ro-unfit"]
    assert (other["reason_code"], other["triplets"]) == ("unencodable", [])
    assert other["content_hash"] == content_hash(other) and other["event_id"] != unfit["event_id"]
    (reject,) = read_all(settings, "rejects")
    assert (reject["reason_code"], reject["rollout_id"], reject["source_offset"]) == ("unencodable", "ro-unfit", -1)
    assert reject["reason_code"] in REASONS
    # written again it is the same event
    write([Outgoing("triplets", unfit)])
    assert len({event["event_id"] for event in read_all(settings, "rejects")}) == 1


def test_a_reject_that_cannot_be_written_is_only_logged(
    settings: Settings, producer: EventProducer, caplog: pytest.LogCaptureFixture
) -> None:
    with EventProducer(replace(settings, max_record_bytes=100), name="test") as narrow:
        Writer(narrow)([Outgoing("triplets", triplets_of("ro-1"))])
    assert read_all(settings, "rejects") == [] == read_all(settings, "triplets")
    assert "an event for rejects cannot be written (record_too_large)" in caplog.text
