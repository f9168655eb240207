"""The metrics page: what it counts is what happened, and every metric is explained."""

from __future__ import annotations

import dataclasses
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from agl_stream.errors import PortInUse
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.log.metrics import StorageCounters, StorageSize
from agl_stream.infra.embedded.server.broker import EmbeddedBroker
from agl_stream.infra.embedded.server.metrics_catalogue import STORAGE_COUNTERS, STORAGE_SIZES, catalogue
from agl_stream.infra.embedded.testing import BrokerThread

_LINE = re.compile(r'([a-z_]+)(\{[a-z_]+="[^"]*"(?:,le="[^"]*")?\})? (\S+)')


@pytest.fixture
def measured() -> Iterator[BrokerThread]:
    with BrokerThread(config=BrokerConfig(metrics_port=0, auto_create_topics=True)) as broker:
        yield broker


def scrape(broker: BrokerThread) -> dict[str, float]:
    with urllib.request.urlopen(broker.broker.metrics_url) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    samples: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            found = _LINE.fullmatch(line)
            assert found, line
            samples[found[1] + (found[2] or "")] = float(found[3])
    return samples


def test_requests_bytes_and_sizes_are_counted(measured):
    before = scrape(measured)
    producer = Producer({"bootstrap.servers": measured.bootstrap_servers})
    for _ in range(10):
        producer.produce("topic", b"x" * 10_000, partition=0)
        assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": measured.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition("topic", 0, 0)])
    assert len(consumer.consume(10, 10)) == 10
    after = scrape(measured)
    consumer.close()

    def grown(name: str) -> float:
        return after[f"agl_broker_{name}"] - before.get(f"agl_broker_{name}", 0)

    assert grown('requests_total{api="produce"}') == 10
    assert 100_000 < grown('request_bytes_total{api="produce"}') < 110_000
    assert 100_000 < grown('response_bytes_total{api="fetch"}') < 200_000
    assert after["agl_broker_connections"] >= 2
    assert after["agl_broker_topics"] == 1
    assert after["agl_broker_storage_log_bytes"] > 100_000
    assert grown("storage_appended_batches_total") == 10
    buckets = [value for name, value in after.items() if name.startswith('agl_broker_request_seconds_bucket{api="prod')]
    assert buckets == sorted(buckets) and buckets[-1] == after['agl_broker_request_seconds_count{api="produce"}'] == 10
    assert 0 < after['agl_broker_request_seconds_sum{api="produce"}'] < 10


def test_refused_connections_are_counted(measured, connect, wait_until):
    connection = connect(measured.bootstrap_servers)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    assert connection.is_closed_within(5)
    wait_until(lambda: scrape(measured)["agl_broker_connections_refused_total"] == 1)


def test_every_metric_is_explained_once_and_every_counter_of_storage_is_on_the_page(measured):
    with urllib.request.urlopen(measured.broker.metrics_url) as answer:
        page = answer.read().decode()
    for metric in catalogue():
        assert page.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
        assert page.count(f"# HELP {metric.name} {metric.help}\n") == 1
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert set(STORAGE_COUNTERS) == {field.name for field in dataclasses.fields(StorageCounters)}
    assert set(STORAGE_SIZES) == {field.name for field in dataclasses.fields(StorageSize)}


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405)])
def test_only_the_page_is_there(measured, method, path, status):
    url = measured.broker.metrics_url.replace("/metrics", path)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, method=method))
    assert refused.value.code == status


def test_there_is_no_page_unless_asked_for():
    with BrokerThread() as broker:
        assert broker.broker.metrics_url is None


async def test_a_metrics_port_in_use_is_named_and_the_folder_is_free_again(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"metrics port {port}.*--metrics-port"):
            await EmbeddedBroker(tmp_path, config=BrokerConfig(metrics_port=port)).start()
    async with EmbeddedBroker(tmp_path):
        pass
