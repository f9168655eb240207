"""What one client can do to the others: limits of connections and memory, stalled clients, half-open ones."""

from __future__ import annotations

import logging
import socket
import struct
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.infra.embedded.config import MIB, BrokerConfig
from agl_stream.infra.embedded.server.request_memory import RequestMemory
from agl_stream.infra.embedded.testing import BrokerThread

_STALLED_CLIENTS = 150
_TOPIC_BYTES = 8 * MIB


def fill(bootstrap_servers: str, total_bytes: int) -> None:
    """A topic with one partition of that many bytes."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic("big", 1, 1)])["big"].result(10)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "queue.buffering.max.kbytes": 1 << 20})
    for _ in range(total_bytes // 100_000):
        producer.produce("big", b"x" * 100_000, partition=0)
    assert producer.flush(30) == 0


def fetch_frame(request_frame, max_bytes: int) -> bytes:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    body = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "big", "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    frame = request_frame("fetch", 11, body)
    return struct.pack(">i", len(frame)) + frame


def test_many_consumers_that_do_not_read_cost_almost_nothing(broker_process, connect, request_frame):
    """Each asks four times for 8 MiB and reads nothing: nearly 5 GiB of answers, of which the broker holds none."""
    fill(broker_process.bootstrap_servers, _TOPIC_BYTES)
    before = broker_process.memory_mib()
    frame = fetch_frame(request_frame, _TOPIC_BYTES)
    stalled = [connect(broker_process.bootstrap_servers) for _ in range(_STALLED_CLIENTS)]
    for connection in stalled:
        connection.send(frame * 4)
    # Another client is served as ever, and reads the same data whole.
    consumer = Consumer({"bootstrap.servers": broker_process.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition("big", 0, 0)])
    count = _TOPIC_BYTES // 100_000
    assert len(consumer.consume(count, 30)) == count
    consumer.close()
    grown = broker_process.memory_mib() - before
    assert grown < 40, f"{grown:.0f} MiB for {_STALLED_CLIENTS} stalled clients"
    # What a stalled client does read is what it has asked for, unharmed by the wait.
    answer = stalled[7].read_frame()
    assert answer is not None and len(answer) > _TOPIC_BYTES * 0.9


def test_half_sent_requests_are_bounded_over_all_connections(tmp_path, connect, wait_until):
    """40 clients send 15 MiB each of a 16 MiB request: with room for 32 MiB, most of it stays in their sockets."""
    config = BrokerConfig(queued_max_request_bytes=32 * MIB, request_read_seconds=60)
    with BrokerThread(tmp_path, config=config) as broker:
        clients = [connect(broker.bootstrap_servers) for _ in range(40)]
        data = struct.pack(">i", 16 * MIB) + b"x" * (15 * MIB)
        for client in clients:
            client._socket.setblocking(False)
        unsent = dict.fromkeys(range(40), 0)
        listener = broker.broker._listener
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and listener.memory.waiting < 30:
            for number, sent in unsent.items():
                try:
                    unsent[number] += clients[number]._socket.send(data[sent : sent + MIB])
                except BlockingIOError:
                    continue
        assert listener.memory.waiting >= 30
        assert listener.memory.held_bytes <= 32 * MIB + 16 * MIB + MIB
        for client in clients:
            client.close()
        wait_until(lambda: listener.memory.held_bytes == 0 and listener.memory.waiting == 0)


def test_above_the_limit_one_reads_on_and_the_others_follow_in_turn():
    class Reader:
        resumed = 0

        def resume_reading(self) -> None:
            self.resumed += 1

    memory = RequestMemory(100)
    first, second, third, busy = Reader(), Reader(), Reader(), Reader()
    assert memory.admits(first, at_any_rate=True)
    memory.hold(150)
    assert not memory.admits(busy, at_any_rate=False)
    assert memory.admits(first, at_any_rate=True)
    assert not memory.admits(second, at_any_rate=True)
    assert not memory.admits(third, at_any_rate=True)
    memory.done(first)  # still over the limit: exactly one may follow
    assert (busy.resumed, second.resumed, third.resumed) == (1, 0, 0)
    memory.done(busy)
    assert memory.admits(second, at_any_rate=True)
    memory.hold(-100)
    assert third.resumed == 1 and memory.waiting == 0


def test_a_client_that_takes_no_answer_is_closed_after_the_idle_time(connect, request_frame, caplog):
    config = BrokerConfig(connection_idle_seconds=0.5)
    with BrokerThread(config=config) as broker, caplog.at_level(logging.WARNING):
        fill(broker.bootstrap_servers, _TOPIC_BYTES)
        stalled = connect(broker.bootstrap_servers)
        stalled.send(fetch_frame(request_frame, _TOPIC_BYTES))
        deadline = time.monotonic() + 10
        while not any("is not taken" in record.message for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_ip"])
def test_a_connection_over_a_limit_is_closed_with_a_line_and_the_rest_go_on(connect, caplog, setting, wait_until):
    with BrokerThread(config=BrokerConfig(**{setting: 3})) as broker, caplog.at_level(logging.WARNING):
        first = [connect(broker.bootstrap_servers) for _ in range(3)]
        assert all(serves(connection) for connection in first)
        assert connect(broker.bootstrap_servers).is_closed_within(5)
        assert [record.message for record in caplog.records if f"{setting} is 3" in record.message]
        assert all(serves(connection) for connection in first)
        assert broker.broker.node.metrics.turned_away == {setting: 1}
        first[0].close()
        wait_until(lambda: len(broker.broker.connections) == 2)
        assert serves(connect(broker.bootstrap_servers))


def test_connections_that_come_too_quickly_are_closed_until_the_rate_is_kept(connect, caplog):
    config = BrokerConfig(max_connection_rate=2.0)
    with BrokerThread(config=config) as broker, caplog.at_level(logging.WARNING):
        opened = [connect(broker.bootstrap_servers) for _ in range(40)]
        served = [serves(connection) for connection in opened]
        assert served[:20] == [True] * 20  # ten seconds' worth may come at once
        assert served.count(False) >= 15
        assert any("max_connection_rate is 2" in record.message for record in caplog.records)
        assert serves(opened[0])


def serves(connection) -> bool:
    try:
        connection.send_frame(struct.pack(">hhih", 18, 0, 7, -1))
    except OSError:
        return False
    return connection.read_frame() is not None


def test_sockets_have_keepalive_probes_and_no_delay(connect):
    with BrokerThread() as broker:
        connection = connect(broker.bootstrap_servers)
        assert serves(connection)
        (served,) = broker.broker.connections
        inner = served._socket
        assert inner.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert inner.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert inner.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


def test_a_burst_of_requests_of_one_client_does_not_hold_up_another(connect):
    """A turn of the loop answers a few frames of a connection, then the others'."""
    with BrokerThread() as broker:
        greedy, other = connect(broker.bootstrap_servers), connect(broker.bootstrap_servers)
        one = struct.pack(">i", 10) + struct.pack(">hhih", 18, 0, 7, -1)
        greedy.send(one * 3_000)
        started = time.monotonic()
        assert serves(other)
        assert time.monotonic() - started < 1
        for _ in range(3_000):
            assert greedy.read_frame() is not None
