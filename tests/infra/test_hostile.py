"""What no client would send: the broker answers or closes with one line, stays alive, and does not grow."""

from __future__ import annotations

import logging
import random
import struct

import pytest
from confluent_kafka import Producer

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.testing import BrokerThread


def header(key: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, -1)


API_VERSIONS_REQUEST = header(18, 0)


def still_serves(connect, bootstrap_servers) -> bool:
    connection = connect(bootstrap_servers)
    connection.send_frame(API_VERSIONS_REQUEST)
    answer = connection.read_frame()
    return answer is not None and answer[:6] == struct.pack(">ih", 7, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", -5),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 10) + header(999, 0),
        struct.pack(">i", 10) + header(0, 99),
        struct.pack(">i", 10) + header(3, 1),
        struct.pack(">i", 14) + header(3, 1) + b"\x7f\xff\xff\xff",
    ],
    ids=["http", "tls", "negative", "zero", "huge", "short", "unknown-api", "version", "truncated-body", "array-bomb"],
)
def test_nonsense_closes_the_connection_with_one_line(connect, bootstrap_servers, caplog, data):
    with caplog.at_level(logging.WARNING):
        connection = connect(bootstrap_servers)
        connection.send(data)
        assert connection.is_closed_within(5)
    lines = [record for record in caplog.records if "closed" in record.message]
    assert len(lines) == 1 and lines[0].exc_info is None
    assert still_serves(connect, bootstrap_servers)


def test_a_newer_api_versions_request_is_answered_with_what_is_spoken(raw):
    raw.send_frame(header(18, 100))
    answer = raw.read_frame()
    correlation_id, error, count = struct.unpack_from(">ihi", answer)
    assert (correlation_id, error, count) == (7, 35, len(APIS))


def test_random_frames_for_every_api_never_stop_the_broker(connect, bootstrap_servers):
    chance = random.Random(20_240_611)
    for number in range(1_500):
        api = chance.choice(list(APIS.values()))
        version = chance.randint(api.first, api.last)
        body = header(api.key, version) + chance.randbytes(chance.choice([0, 1, 4, 20, 200]))
        connection = connect(bootstrap_servers)
        connection.send_frame(body)
        connection.stop_sending()
        connection.close()
        if number % 300 == 0:
            assert still_serves(connect, bootstrap_servers)
    assert still_serves(connect, bootstrap_servers)


def test_mutated_real_requests_never_stop_the_broker(connect, bootstrap_servers, broker):
    """Valid produce and metadata requests with a few bytes changed: deeper into the handlers than noise gets."""
    chance = random.Random(7)
    metadata = header(3, 1) + struct.pack(">ih", 1, 4) + b"name"
    batch = struct.pack(">qiibIhiqqqhii", 0, 49, 0, 2, 0, 0, 0, 1, 1, -1, -1, -1, 1)
    produce = header(0, 3) + struct.pack(">hhii", -1, -1, 1_000, 1) + struct.pack(">h", 4) + b"name"
    produce += struct.pack(">iii", 1, 0, len(batch)) + batch
    fetch = header(1, 4) + struct.pack(">iiiibi", -1, 10, 1, 1_000, 0, 1) + struct.pack(">h", 4) + b"name"
    fetch += struct.pack(">iiqi", 1, 0, 0, 1_000)
    join = (
        header(11, 0) + struct.pack(">h", 1) + b"g" + struct.pack(">ih", 5_000, 0) + struct.pack(">h", 8) + b"consumer"
    )
    join += struct.pack(">ih", 1, 5) + b"range" + struct.pack(">i", 4) + b"meta"
    for _ in range(1_000):
        frame = bytearray(chance.choice([metadata, produce, fetch, join]))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(8, len(frame))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        connection = connect(bootstrap_servers)
        connection.send_frame(bytes(frame))
        connection.close()
    assert still_serves(connect, bootstrap_servers)


def test_requests_sent_at_once_are_answered_in_order(raw):
    raw.send(b"".join(struct.pack(">i", 10) + header(18, 0, number) for number in range(500)))
    answered = [struct.unpack_from(">i", raw.read_frame())[0] for _ in range(500)]
    assert answered == list(range(500))


def test_frames_may_come_byte_by_byte(raw):
    for byte in struct.pack(">i", len(API_VERSIONS_REQUEST)) + API_VERSIONS_REQUEST:
        raw.send(bytes([byte]))
    assert raw.read_frame() is not None


def test_a_client_that_never_reads_is_not_answered_without_end(connect, wait_until):
    """Answers pile up to the socket's buffers, then requests stay unread: the broker does not hold them all."""
    with BrokerThread() as broker:
        greedy = connect(broker.bootstrap_servers)
        request = struct.pack(">i", len(API_VERSIONS_REQUEST)) + API_VERSIONS_REQUEST
        greedy._socket.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 512 * 1024 * 1024:
                greedy.send(request * 5_000)
                sent += 5_000 * len(request)
        (connection,) = broker.broker.connections
        assert connection.held_bytes < 1024 * 1024
        assert still_serves(connect, broker.bootstrap_servers)


def test_half_sent_frames_and_idle_connections_are_closed(connect):
    config = BrokerConfig(request_read_seconds=0.3, connection_idle_seconds=0.8)
    with BrokerThread(config=config) as broker:
        half = connect(broker.bootstrap_servers)
        half.send(struct.pack(">i", 1_000) + b"only this")
        idle = connect(broker.bootstrap_servers)
        assert half.is_closed_within(5)
        assert idle.is_closed_within(5)
        assert still_serves(connect, broker.bootstrap_servers)


def test_connections_beyond_the_limit_are_closed(connect):
    with BrokerThread(config=BrokerConfig(max_connections=3)) as broker:
        first = [connect(broker.bootstrap_servers) for _ in range(3)]
        assert still_serves_on(first[0])
        assert connect(broker.bootstrap_servers).is_closed_within(5)
        first[1].close()
        assert still_serves_on(first[2])


def still_serves_on(connection) -> bool:
    connection.send_frame(API_VERSIONS_REQUEST)
    return connection.read_frame() is not None


def test_a_length_alone_costs_no_memory(broker_process, connect):
    before = broker_process.memory_mib()
    for _ in range(50):
        connect(broker_process.bootstrap_servers).send(struct.pack(">i", 60 * 1024 * 1024) + b"x" * 100)
    assert still_serves(connect, broker_process.bootstrap_servers)
    assert broker_process.memory_mib() - before < 100


def test_a_frame_over_the_limit_is_refused_and_a_smaller_one_taken(connect):
    with BrokerThread(config=BrokerConfig(max_request_bytes=100_000, auto_create_topics=True)) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        producer.produce("topic", b"x" * 50_000)
        assert producer.flush(10) == 0
        large = connect(broker.bootstrap_servers)
        large.send(struct.pack(">i", 100_001))
        assert large.is_closed_within(5)
