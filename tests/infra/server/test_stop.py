"""A stop answers what was asked, a start takes over from a process that is just ending."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.errors import PortInUse
from agl_stream.infra.embedded.config import MIB, BrokerConfig
from agl_stream.infra.embedded.server.broker import EmbeddedBroker
from agl_stream.infra.embedded.storage import FolderInUse
from agl_stream.infra.embedded.testing import BrokerThread


def fetch_body(max_wait_ms: int, max_bytes: int, min_bytes: int = 1) -> dict:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "topic", "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def make_topic(bootstrap_servers: str, megabytes: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(10)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for _ in range(megabytes * 10):
        producer.produce("topic", b"x" * 100_000, partition=0)
    assert producer.flush(30) == 0


def test_an_answer_under_way_is_taken_whole_before_the_connection_ends(broker_process, connect, request_frame):
    make_topic(broker_process.bootstrap_servers, megabytes=12)
    reader = connect(broker_process.bootstrap_servers)
    reader.send_frame(request_frame("fetch", 11, fetch_body(0, 12 * MIB)))
    reader._read(4)  # the answer has begun; most of it is still in the broker's file
    stopping = threading.Thread(target=broker_process.terminate)
    stopping.start()
    size = 11 * MIB
    received = 0
    while chunk := reader._socket.recv(1 << 20):
        received += len(chunk)
    stopping.join(20)
    assert received > size
    assert "ended before" not in broker_process.log()


def test_a_stop_does_not_wait_for_a_long_poll_or_for_who_reads_nothing(connect, request_frame):
    config = BrokerConfig(stop_seconds=0.5)
    with BrokerThread(config=config) as broker:
        make_topic(broker.bootstrap_servers, megabytes=12)
        polling, deaf = connect(broker.bootstrap_servers), connect(broker.bootstrap_servers)
        polling.send_frame(request_frame("fetch", 11, fetch_body(60_000, 1, min_bytes=1 << 30)))
        deaf.send_frame(request_frame("fetch", 11, fetch_body(0, 12 * MIB)))
        deaf._read(4)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert polling.is_closed_within(1)


def test_what_waits_for_the_disk_is_answered_by_a_stop(tmp_path, connect, request_frame, monkeypatch):
    """Under every-write an acknowledgement may be on its way when the stop comes: it is given, not lost."""
    config = BrokerConfig(flush_policy="every-write")
    with BrokerThread(tmp_path, config=config) as broker:
        make_topic(broker.bootstrap_servers)
        log = broker.broker.node.catalogue.partition("topic", 0)
        may_flush, flushing, flush = threading.Event(), threading.Event(), log.flush

        def held_back() -> None:
            flushing.set()
            assert may_flush.wait(10)
            flush()

        monkeypatch.setattr(log, "flush", held_back)
        delivered: list = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0, "log_level": 0})
        producer.produce("topic", b"x", on_delivery=lambda error, _: delivered.append(error))
        while not flushing.wait(0):
            producer.poll(0.01)
        broker._loop.call_soon_threadsafe(broker._stop.set)
        while broker.broker._running:
            time.sleep(0.01)
        assert broker._thread.is_alive()  # the stop has begun and waits for the disk
        may_flush.set()
        assert producer.flush(10) == 0
    assert delivered == [None]


async def test_a_start_waits_for_a_folder_whose_process_is_ending(tmp_path):
    first = EmbeddedBroker(tmp_path)
    await first.start()
    ending: list[asyncio.Task] = []
    asyncio.get_running_loop().call_later(0.4, lambda: ending.append(asyncio.create_task(first.stop())))
    started = time.monotonic()
    async with EmbeddedBroker(tmp_path):
        assert time.monotonic() - started > 0.3
    await ending[0]


async def test_a_start_waits_for_a_port_whose_process_is_ending(tmp_path):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    asyncio.get_running_loop().call_later(0.4, taken.close)
    async with EmbeddedBroker(tmp_path, port=port) as broker:
        assert broker.port == port


async def test_it_does_not_wait_for_ever(tmp_path):
    config = BrokerConfig(takeover_seconds=0.2)
    async with EmbeddedBroker(tmp_path / "a") as broker:
        with pytest.raises(FolderInUse):
            await EmbeddedBroker(tmp_path / "a", config=config).start()
        with pytest.raises(PortInUse):
            await EmbeddedBroker(tmp_path / "b", port=broker.port, config=config).start()


def test_a_new_process_takes_folder_and_port_while_the_old_one_still_stops(broker_process, connect, tmp_path):
    """As a supervisor does that sends SIGTERM and starts the next at once, with connections open."""
    make_topic(broker_process.bootstrap_servers)
    clients = [connect(broker_process.bootstrap_servers) for _ in range(20)]
    for client in clients:
        client.send_frame(struct.pack(">hhih", 18, 0, 7, -1))
        assert client.read_frame() is not None
    os.kill(broker_process.pid, signal.SIGTERM)
    command = [sys.executable, "-m", "agl_stream.cli.main", "broker", "--port", str(broker_process.port)]
    with subprocess.Popen([*command, "--dir", str(tmp_path / "data")], stdout=subprocess.PIPE, text=True) as successor:
        try:
            assert successor.stdout is not None
            assert f"ready on 127.0.0.1:{broker_process.port}" in successor.stdout.readline()
            admin = AdminClient({"bootstrap.servers": broker_process.bootstrap_servers})
            assert "topic" in admin.list_topics(timeout=10).topics
        finally:
            successor.terminate()
