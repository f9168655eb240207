"""Client quotas: the measure, which of several is in force, what survives, and what a client over its own sees."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from agl_stream.errors import SettingError
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.server.quotas import (
    CONSUMER_RATE,
    PRODUCER_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    WindowedSum,
)
from agl_stream.infra.embedded.testing import BrokerThread


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def quotas_in(folder, clock=None, **settings) -> ClientQuotas:
    return ClientQuotas(folder / "quotas.json", BrokerConfig(**settings), clock or Clock())


class TestTheMeasure:
    def test_a_silent_past_allows_a_burst_of_ten_seconds_worth(self):
        used = WindowedSum()
        used.add(1_000, 50.0)
        assert used.seconds_over(100, 50.0) == 0
        used.add(200, 50.0)
        assert used.seconds_over(100, 50.0) == pytest.approx(2)

    def test_what_is_older_than_eleven_windows_is_forgotten(self):
        used = WindowedSum()
        used.add(5_000, 0.0)
        assert used.seconds_over(100, 10.9) > 0
        assert used.seconds_over(100, 11.1) == 0
        assert used.is_idle(11.1)

    def test_a_client_that_waits_as_told_has_the_rate_of_its_quota(self):
        used, now, sent = WindowedSum(), 0.0, 0
        while now < 200:
            used.add(70, now)
            sent += 70
            now += 0.01 + used.seconds_over(100, now)
        assert sent / 200 == pytest.approx(100, rel=0.12)


class TestWhichIsInForce:
    def test_the_ids_own_then_the_default_then_the_brokers(self, tmp_path):
        quotas = quotas_in(tmp_path, producer_byte_rate=300.0)
        assert quotas.limit("a", PRODUCER_RATE) == 300
        quotas.alter(None, {PRODUCER_RATE: 200.0})
        quotas.alter("a", {PRODUCER_RATE: 100.0, CONSUMER_RATE: 7.0})
        assert [quotas.limit(name, PRODUCER_RATE) for name in ("a", "b")] == [100, 200]
        assert [quotas.limit(name, CONSUMER_RATE) for name in ("a", "b")] == [7, None]
        quotas.alter("a", {PRODUCER_RATE: None})
        quotas.alter(None, {PRODUCER_RATE: None})
        assert quotas.limit("a", PRODUCER_RATE) == 300

    def test_they_survive_a_restart_and_a_damaged_file_is_not_guessed_at(self, tmp_path):
        quotas_in(tmp_path).alter("a", {CONSUMER_RATE: 5.5})
        quotas_in(tmp_path).alter(None, {REQUEST_PERCENTAGE: 20.0})
        found = quotas_in(tmp_path).altered()
        assert found == {"a": {CONSUMER_RATE: 5.5}, None: {REQUEST_PERCENTAGE: 20.0}}
        (tmp_path / "quotas.json").write_text('{"format": 1, "client')
        with pytest.raises(DamagedFile, match=r"quotas\.json"):
            quotas_in(tmp_path)
        (tmp_path / "quotas.json").write_text('{"format": 2}')
        with pytest.raises(DamagedFile, match="format 2"):
            quotas_in(tmp_path)

    def test_impossible_ones_are_refused(self):
        with pytest.raises(SettingError, match="producer_byte_rate"):
            BrokerConfig(producer_byte_rate=0)


class TestCharging:
    def test_a_fetch_over_the_quota_is_not_counted_and_can_come_again(self, tmp_path):
        clock = Clock()
        quotas = quotas_in(tmp_path, clock, consumer_byte_rate=100.0)
        assert quotas.fetch_budget("a") == 1_000
        assert quotas.charge_fetched("a", 1_000) == 0
        assert quotas.charge_fetched("a", 500) == 5_000
        assert quotas.charge_fetched("b", 500) == 0
        clock.now += 5
        assert quotas.charge_fetched("a", 500) > 0
        clock.now += 6.5
        assert quotas.charge_fetched("a", 500) == 0

    def test_a_batch_above_the_whole_burst_comes_when_nothing_else_has(self, tmp_path):
        clock = Clock()
        quotas = quotas_in(tmp_path, clock, consumer_byte_rate=100.0)
        assert quotas.charge_fetched("a", 50_000) == 0
        assert quotas.charge_fetched("a", 50_000) > 0
        clock.now += 11
        assert quotas.charge_fetched("a", 50_000) == 0

    def test_time_is_charged_in_percent_of_one_loop_and_throttles_a_second_at_most(self, tmp_path):
        quotas = quotas_in(tmp_path, request_percentage=10.0)
        assert quotas.charge_time("a", 0.9) == 0
        assert quotas.charge_time("a", 0.15) == 500
        assert quotas.charge_time("a", 60.0) == 1_000

    def test_silent_client_ids_are_forgotten(self, tmp_path):
        clock = Clock()
        quotas = quotas_in(tmp_path, clock, producer_byte_rate=100.0)
        for number in range(5_000):
            quotas.charge_produced(f"id-{number}", 1)
            clock.now += 0.1
        assert len(quotas._used) < 1_500


def entity(name: str | None, kind: str = "client-id") -> list[dict]:
    return [{"entity_type": kind, "entity_name": name}]


def set_quota(ask, connection, name: str | None, key: str, value: float, kind: str = "client-id") -> dict:
    op = {"key": key, "value": value, "remove": False}
    body = {"entries": [{"entity": entity(name, kind), "ops": [op]}], "validate_only": False}
    (answer,) = ask(connection, "alter_client_quotas", 1, body)["entries"]
    return answer


def described(ask, connection, components: list[dict], strict: bool = False) -> list:
    answer = ask(connection, "describe_client_quotas", 1, {"components": components, "strict": strict})
    assert answer["error_code"] == 0
    return [(e["entity"][0]["entity_name"], {v["key"]: v["value"] for v in e["values"]}) for e in answer["entries"]]


def test_quotas_are_altered_and_described(ask, connect):
    with BrokerThread() as broker:
        connection = connect(broker.bootstrap_servers)
        assert set_quota(ask, connection, "a", PRODUCER_RATE, 1000.0)["error_code"] == 0
        assert set_quota(ask, connection, None, CONSUMER_RATE, 2000.0)["error_code"] == 0
        both = [("a", {PRODUCER_RATE: 1000.0}), (None, {CONSUMER_RATE: 2000.0})]
        assert described(ask, connection, []) == both
        exactly = {"entity_type": "client-id", "match_type": 0, "match": "a"}
        default = {"entity_type": "client-id", "match_type": 1, "match": None}
        anything = {"entity_type": "client-id", "match_type": 2, "match": None}
        assert described(ask, connection, [exactly]) == both[:1]
        assert described(ask, connection, [default]) == both[1:]
        assert described(ask, connection, [anything], strict=True) == both
        assert described(ask, connection, [], strict=True) == []
        assert described(ask, connection, [{"entity_type": "user", "match_type": 2, "match": None}]) == []
        refused = ask(connection, "describe_client_quotas", 1, {"components": [exactly, default], "strict": False})
        assert refused["error_code"] == 42 and refused["entries"] is None


@pytest.mark.parametrize(
    ("name", "key", "value", "kind", "told"),
    [
        ("a", "producer_bit_rate", 1.0, "client-id", "known are producer_byte_rate"),
        ("a", PRODUCER_RATE, 0.0, "client-id", "above 0"),
        ("a", PRODUCER_RATE, float("nan"), "client-id", "above 0"),
        ("", PRODUCER_RATE, 1.0, "client-id", "empty client-id"),
        ("me", PRODUCER_RATE, 1.0, "user", "client-id only"),
        ("127.0.0.1", "connection_creation_rate", 1.0, "ip", "max_connection_rate"),
    ],
)
def test_what_cannot_be_a_quota_is_refused_with_a_sentence(ask, raw, name, key, value, kind, told):
    answer = set_quota(ask, raw, name, key, value, kind)
    assert answer["error_code"] == 42 and told in answer["error_message"]
    assert described(ask, raw, []) == []


def test_a_producer_over_its_quota_waits_and_the_others_do_not(ask, connect):
    """1 MB at 200,000 bytes a second, measured over two seconds: 200,000 bytes are the burst."""
    with BrokerThread(config=BrokerConfig(auto_create_topics=True, quota_windows=2)) as broker:
        set_quota(ask, connect(broker.bootstrap_servers), "limited", PRODUCER_RATE, 200_000.0)
        told: list[float] = []

        def produce_much() -> None:
            limited = Producer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "client.id": "limited",
                    "batch.size": 50_000,
                    "throttle_cb": lambda event: told.append(event.throttle_time),
                }
            )
            for _ in range(100):
                limited.produce("topic", b"x" * 10_000)
                limited.poll(0)
            assert limited.flush(30) == 0

        started = time.monotonic()
        thread = threading.Thread(target=produce_much)
        thread.start()
        free = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "free"})
        slowest = 0.0
        while thread.is_alive():
            sent_at = time.monotonic()
            free.produce("other", b"x")
            assert free.flush(10) == 0
            slowest = max(slowest, time.monotonic() - sent_at)
            thread.join(0.05)
        seconds = time.monotonic() - started
        assert 2 < seconds < 20
        assert told and max(told) > 0.1
        assert slowest < 1.5


def test_a_throttled_connection_is_not_read_from_until_its_time_is_over(ask, connect, request_frame):
    with BrokerThread(config=BrokerConfig(request_percentage=0.001)) as broker:
        connection = connect(broker.bootstrap_servers)
        frame = request_frame("metadata", 8, {"topics": None, "allow_auto_topic_creation": False}, "busy")
        for _ in range(200):
            started = time.monotonic()
            connection.send_frame(frame)
            assert connection.read_frame() is not None
            if time.monotonic() - started > 0.5:
                break
        else:
            raise AssertionError("200 requests at a thousandth of a percent of the time were never held back")
        # The other client's connection is listened to all the while.
        other = connect(broker.bootstrap_servers)
        started = time.monotonic()
        assert ask(other, "metadata", 8, {"topics": [], "allow_auto_topic_creation": False}, "calm") is not None
        assert time.monotonic() - started < 0.5


def test_a_consumer_over_its_quota_gets_everything_later():
    with BrokerThread(
        config=BrokerConfig(auto_create_topics=True, consumer_byte_rate=500_000.0, quota_windows=2)
    ) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 50_000})
        for number in range(150):
            producer.produce("topic", b"%d" % number + b"x" * 10_000, partition=0)
        assert producer.flush(10) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "client.id": "limited"})
        consumer.assign([TopicPartition("topic", 0, 0)])
        started = time.monotonic()
        got = consumer.consume(150, 30)
        seconds = time.monotonic() - started
        consumer.close()
        assert [m.value().partition(b"x")[0] for m in got] == [b"%d" % number for number in range(150)]
        assert seconds > 1
        assert broker.broker.node.metrics.by_api[1].throttled > 0
