"""The event producer against a real broker: acknowledged, bounded, loud, patient."""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from agl_stream.errors import (
    AglStreamError,
    BufferFull,
    DeliveryFailed,
    EncodeError,
    EngineUnreachable,
    RecordTooLarge,
    UsageError,
)
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.delivery import Flight
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import current
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings
from tests.producers.conftest import PARTITIONS, Log, make_topics

NOBODY = "127.0.0.1:1"


def span(rollout_id: str, number: int = 0, **fields: object) -> dict:
    return {
        "rollout_id": rollout_id,
        "attempt_id": "at-1",
        "span_id": f"{number:016x}",
        "sequence_id": number,
        "name": "n",
        "started_at_us": 1,
        **fields,
    }


def test_what_is_missing_is_filled_in_and_the_callers_dict_stays_as_it_is(producer, log: Log, rollout_id):
    event = span(rollout_id)
    before = dict(event)
    producer.send("spans", event)
    producer.flush()
    assert event == before
    written = log.events("spans", rollout_id)[0]
    assert len(written["event_id"]) == 32 and written["occurred_at_us"] > 1_700_000_000_000_000
    assert written["producer"]["name"] == "tests" and written["producer"]["instance"]


def test_ids_given_are_kept(producer, log: Log, rollout_id):
    producer.deliver("spans", [(rollout_id, span(rollout_id, event_id="mine", occurred_at_us=7))])
    written = log.events("spans", rollout_id)[0]
    assert (written["event_id"], written["occurred_at_us"]) == ("mine", 7)


def test_a_key_goes_to_the_partition_a_java_client_would_choose(producer, log: Log):
    ids = [f"ro-part-{number}" for number in range(40)]
    producer.deliver("spans", [(id_, span(id_)) for id_ in ids])
    found = log.records("spans", lambda all_: {key for _, key, _ in all_} >= set(ids))
    placed = {key: partition for partition, key, _ in found if key in ids}
    assert placed == {id_: murmur2_partition(id_.encode(), PARTITIONS) for id_ in ids}
    assert len(set(placed.values())) == PARTITIONS


def test_the_topics_rule_gives_the_key(producer, log: Log):
    for topic, expected in {"triplets": "gr-k", "resources": "rs-k@3", "workers": "wk-k"}.items():
        event = {
            field["name"]: _some_value(field)
            for field in current(TOPICS[topic].event)["fields"]
            if "default" not in field
        }
        producer.send(topic, event | {"group_id": "gr-k", "resources_id": "rs-k", "version": 3, "worker_id": "wk-k"})
        producer.flush()
        assert [key for _, key, _ in log.records(topic, lambda all_: len(all_) >= 1)] == [expected]


def _some_value(field: dict) -> object:
    kind = field["type"]
    return {"string": "x", "int": 1, "long": 1}[kind] if isinstance(kind, str) else kind["symbols"][0]


def test_order_within_a_key_is_the_order_of_sending(producer, log: Log, rollout_id):
    producer.deliver("spans", [(rollout_id, span(rollout_id, number)) for number in range(3000)])
    found = log.records("spans", lambda all_: sum(key == rollout_id for _, key, _ in all_) >= 3000)
    assert [event["sequence_id"] for _, key, event in found if key == rollout_id] == list(range(3000))


def test_adeliver_returns_where_the_event_lies(producer, log: Log, rollout_id):
    async def send_all() -> list[tuple[int, int]]:
        return await asyncio.gather(*(producer.adeliver("spans", span(rollout_id, n)) for n in range(50)))

    placed = asyncio.run(send_all())
    assert len(set(placed)) == 50 and len({partition for partition, _ in placed}) == 1
    # a second loop in the same process works as well
    assert asyncio.run(send_all())[0][1] > placed[0][1]


def test_wrong_events_raise_at_once(producer, rollout_id):
    with pytest.raises(UsageError, match="no topic 'nope'"):
        producer.send("nope", {})
    with pytest.raises(EncodeError, match="span_id"):
        producer.send("spans", {"rollout_id": rollout_id, "attempt_id": "at-1"})
    producer.flush()


def test_a_callback_that_raises_harms_nobody_else(producer, rollout_id):
    def callback(*_: object) -> None:
        raise RuntimeError("mine")

    producer.send("spans", span(rollout_id), on_delivery=callback)
    producer.flush()
    producer.deliver("spans", [(rollout_id, span(rollout_id, 1))])


def test_an_oversized_record_names_the_settings(producer, rollout_id):
    with pytest.raises(RecordTooLarge, match=r"AGL_STREAM_MAX_RECORD_BYTES.*AGL_STREAM_INLINE_LIMIT_BYTES"):
        producer.send("spans", span(rollout_id, request="x" * 9_000_000))
    producer.flush()


def test_a_missing_topic_fails_at_flush_and_names_the_remedy(settings: Settings, rollout_id):
    lost = dataclasses.replace(settings, namespace="nowhere", delivery_timeout_seconds=8.0)
    heard = []
    producer = EventProducer(lost, name="tests", codec=Codec())
    producer.send("spans", span(rollout_id), on_delivery=lambda error, _: heard.append(error))
    with pytest.raises(DeliveryFailed, match="agl-stream topics apply"):
        producer.flush()
    assert len(heard) == 1 and heard[0] is not None
    producer.flush()
    producer.close()


def test_an_unreachable_broker_is_told_in_time(settings: Settings):
    away = dataclasses.replace(settings, bootstrap_servers=NOBODY, connect_timeout_seconds=0.5)
    with EventProducer(away, name="tests", codec=Codec()) as producer:
        started = time.monotonic()
        with pytest.raises(EngineUnreachable, match="AGL_STREAM_BOOTSTRAP_SERVERS"):
            producer.check()
        assert time.monotonic() - started < 3.0


def test_failures_surface_everywhere_when_nobody_answers(settings: Settings, rollout_id):
    away = dataclasses.replace(settings, bootstrap_servers=NOBODY, delivery_timeout_seconds=1.0)
    producer = EventProducer(away, name="tests", codec=Codec())
    producer.send("spans", span(rollout_id))
    with pytest.raises(TimeoutError, match="1 event"):
        producer.flush(0.05)
    with pytest.raises(DeliveryFailed, match="AGL_STREAM_DELIVERY_TIMEOUT_SECONDS"):
        producer.flush()
    with pytest.raises(DeliveryFailed):
        producer.deliver("spans", [(rollout_id, span(rollout_id))])
    with pytest.raises(DeliveryFailed):
        asyncio.run(producer.adeliver("spans", span(rollout_id)))
    producer.send("spans", span(rollout_id))
    with pytest.raises(DeliveryFailed):
        producer.close()
    producer.close()
    with pytest.raises(AglStreamError, match="closed"):
        producer.send("spans", span(rollout_id))


def test_a_full_buffer_blocks_then_raises(settings: Settings, rollout_id):
    away = dataclasses.replace(settings, bootstrap_servers=NOBODY, delivery_timeout_seconds=0.6, buffer_events=5)
    # the client itself keeps events longer than the sender waits, so that the buffer stays full
    producer = EventProducer(away, name="tests", codec=Codec())
    sent = 0
    started = time.monotonic()
    with pytest.raises(BufferFull, match="AGL_STREAM_BUFFER_EVENTS"):
        for _ in range(100):
            producer.send("spans", span(rollout_id))
            sent += 1
    assert sent < 100 and time.monotonic() - started >= 0.5
    with pytest.raises((DeliveryFailed, TimeoutError)):
        producer.close(timeout_seconds=5.0)


def test_back_pressure_lets_everything_through_in_the_end(settings: Settings, log: Log, rollout_id):
    small = dataclasses.replace(settings, buffer_events=50)
    with EventProducer(small, name="tests") as producer:

        async def many() -> None:
            await asyncio.gather(*(producer.adeliver("spans", span(rollout_id, n)) for n in range(500)))

        def send_500(start: int) -> None:
            for number in range(start, start + 500):
                producer.send("spans", span(rollout_id, number))

        threads = [threading.Thread(target=send_500, args=(start,)) for start in (1000, 2000)]
        for thread in threads:
            thread.start()
        asyncio.run(many())
        for thread in threads:
            thread.join()
        producer.flush()
    found = log.events("spans", rollout_id, 1500)
    assert len({event["span_id"] for event in found}) == len(found) == 1500


def test_it_refuses_to_work_in_a_forked_child(producer):
    def in_child(results: multiprocessing.SimpleQueue) -> None:
        try:
            producer.send("spans", span("ro-fork"))
            results.put("sent")
        except AglStreamError as error:
            results.put(str(error))

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=in_child, args=(results,))
    child.start()
    child.join(20)
    assert "does not survive a fork" in results.get()


class DeadClient:
    """A client after a fatal error, as librdkafka leaves it: everything that is handed to it is refused."""

    def produce(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "sequence lost", fatal=True))

    def poll(self, _: float) -> int:
        return 0

    def purge(self) -> None: ...

    def __len__(self) -> int:
        return 0


def test_a_client_with_a_fatal_error_is_replaced_but_not_for_ever(settings: Settings, log: Log, rollout_id):
    with EventProducer(settings, name="tests") as producer:
        for number in range(4):
            # the living client has nothing outstanding at this moment, so nothing is lost by taking it away
            producer._client = DeadClient()  # type: ignore[assignment]
            producer.send("spans", span(rollout_id, number))
            producer.flush()
        assert asyncio.run(producer.adeliver("spans", span(rollout_id, 5)))[1] >= 0
        producer.flush()
        assert [event["sequence_id"] for event in log.events("spans", rollout_id, 5)] == [0, 1, 2, 3, 5]
        # what fell with a dead client is sent again with a living one
        heard: list[object] = []
        record = producer._record("spans", span(rollout_id, 6), None, None)
        producer._client = DeadClient()  # type: ignore[assignment]
        flight = Flight()
        flight.board()
        fell = KafkaError(KafkaError._PURGE_QUEUE)
        producer._landed(flight, lambda error, _: heard.append(error), record, fell, None)
        assert flight.wait(time.monotonic() + 20) and heard == [None] and flight.failed == 0
        assert log.events("spans", rollout_id, 6)[-1]["sequence_id"] == 6
        alive, producer._client = producer._client, DeadClient()  # type: ignore[assignment]
        with pytest.raises(DeliveryFailed, match="5 times within a minute"):
            producer.send("spans", span(rollout_id))
        producer._client = alive


@pytest.mark.faults
@pytest.mark.parametrize("keeps_data", [True, False])
def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, keeps_data: bool):
    """Also one that lost its folder, and with it the producer's state: the client is replaced, nothing is dropped."""
    first = tmp_path / "first"
    with BrokerThread(first) as broker:
        port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
        settings = Settings(
            register_schemas=True,
            dir=str(tmp_path),
            bootstrap_servers=broker.bootstrap_servers,
            partitions=2,
            delivery_timeout_seconds=40.0,
        )
        make_topics(settings)
        producer = EventProducer(settings, name="tests", codec=Codec())
        producer.deliver("spans", [(f"ro-{n}", span(f"ro-{n}")) for n in range(20)])
    acknowledged = []
    for n in range(20, 60):
        producer.send("spans", span(f"ro-{n}"), on_delivery=lambda error, m: acknowledged.append((error, m.key())))
    with BrokerThread(first if keeps_data else tmp_path / "second", port=port):
        if not keeps_data:
            make_topics(settings)
        producer.flush()
        producer.deliver("spans", [("ro-60", span("ro-60"))])
        producer.close()
    assert [error for error, _ in acknowledged] == [None] * 40
    assert {key for _, key in acknowledged} == {f"ro-{n}".encode() for n in range(20, 60)}
