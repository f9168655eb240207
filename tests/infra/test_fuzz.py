"""Whatever comes over the wire, the broker serves its other clients, does not grow, and does not end."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
import uuid

import cramjam
import pytest
from crc32c import crc32c

from tests.conformance.kafka.clients.port import Partition
from tests.conformance.kafka.clients.wire import Wire, batch, record
from tests.infra.attacks import VICTIM, Frames, PeakMemory, Witness, assault
from tests.infra.conftest import BrokerProcess

MAY_KEEP_MIB = 150
"""After an attack is over; a broker with a hundred topics stays below it."""
MAY_TAKE_MIB = 600
"""While an attack goes on: two batches of the largest size, unpacked, and the requests that are being read."""
LONG_SECONDS = float(os.environ.get("AGL_STREAM_FUZZ_SECONDS", "60"))
TAKEN, INVALID_RECORD = 0, 87
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SLOW_CODECS = ("gzip", "snappy", "lz4")


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    process = BrokerProcess(tmp_path_factory.mktemp("victim") / "data", "--auto-create-topics")
    yield process
    process.close()


@pytest.fixture
def attacked(victim, request):
    """The broker's address, with a witness at work; afterwards the broker is the same, as large as before."""
    wire = Wire(victim.bootstrap_servers)
    for topic in (VICTIM, request.node.name.replace("[", "-").rstrip("]")):
        wire.call("metadata", 4, topics=[{"name": topic}], allow_auto_topic_creation=True)
    wire.close()
    pid, before = victim.pid, victim.memory_mib()
    with Witness(victim.bootstrap_servers, topic) as witness, PeakMemory(victim.memory_mib) as peak:
        yield victim.bootstrap_servers
        attacked_until = witness.acknowledged
        _wait(lambda: witness.acknowledged > attacked_until, "a record after the attack")
    print(f"{witness.acknowledged} records beside the attack, the slowest in {witness.slowest_seconds:.2f} s")
    assert victim.pid == pid and victim.is_running()
    assert peak.mib < before + MAY_TAKE_MIB
    _wait(lambda: victim.memory_mib() < before + MAY_KEEP_MIB, "the memory of before")
    assert "Traceback" not in victim.log()
    assert " failed: " not in victim.log(), "a handler met what the reader should have refused"


def _wait(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(0.05)


def _connect(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frames_of_every_kind_disturb_nobody(attacked, seed):
    assault(attacked, Frames(seed), 250)


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS * 3 + 120)
def test_many_more_frames_disturb_nobody(attacked):
    """AGL_STREAM_FUZZ_SECONDS says how long, AGL_STREAM_FUZZ_SEED with which first seed."""
    seed = int(os.environ.get("AGL_STREAM_FUZZ_SEED", time.time_ns() // 1_000_000))
    end = time.monotonic() + LONG_SECONDS
    while time.monotonic() < end:
        print(f"seed {seed}", flush=True)
        assault(attacked, Frames(seed), 500)
        seed += 1


def test_one_seed_gives_the_same_frames_again():
    first, second, other = Frames(5), Frames(5), Frames(6)
    frames = [first.next() for _ in range(200)]
    assert frames == [second.next() for _ in range(200)]
    assert frames != [other.next() for _ in range(200)]


def test_slow_senders_hold_up_nobody(attacked):
    """A hundred clients that send a request byte by byte, and a hundred that say only that one will come."""
    slow = [_connect(attacked) for _ in range(100)]
    promising = [_connect(attacked) for _ in range(100)]
    for connected in promising:
        connected.sendall(struct.pack(">i", 60_000_000) + b"x" * 100)
    request = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    for byte in request:
        for connected in slow:
            connected.sendall(bytes([byte]))
        time.sleep(0.02)
    for connected in slow:
        assert struct.unpack(">i", connected.recv(4))[0] > 0
        connected.close()
    for connected in promising:
        connected.close()


def test_thousands_of_connections_are_bounded(attacked):
    """Those beyond max_connections are closed at once, and there is room again when the others have gone."""
    opened = []
    try:
        for _ in range(2_500):
            opened.append(_connect(attacked))
        refused = 0
        for connected in opened:
            connected.settimeout(0.0)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                refused += connected.recv(1) == b""
        assert refused > 1_000
    finally:
        for connected in opened:
            connected.close()
    _wait(lambda: _serves(attacked), "room for a connection")


def _serves(address):
    with contextlib.suppress(OSError):
        wire = Wire(address)
        wire.call("api_versions", 0)
        wire.close()
        return True
    return False


def _bomb(codec, plain):
    """A small batch that is large inside."""
    compress = {
        1: cramjam.gzip.compress,
        2: cramjam.snappy.compress_raw,
        3: cramjam.lz4.compress,
        4: cramjam.zstd.compress,
    }
    return bytes(compress[codec](plain))


def _batch_of(payload, codec, count, promised_ms=0):
    """A batch with any payload under a right checksum; `promised_ms` is how much later than now it says to reach."""
    now_ms = int(time.time() * 1000)
    numbers = (codec, count - 1, now_ms, now_ms + promised_ms, -1, -1, -1, count)
    body = struct.pack(">hiqqqhii", *numbers) + payload
    return struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body


def _ask_for_times(wire, partition):
    """Makes the broker look inside the newest batch, whatever it answers."""
    with contextlib.suppress(ConnectionError):
        wire.socket.settimeout(60)
        wire.list_offset(partition, int(time.time() * 1000) + 10_000_000)
        wire.list_offset(partition, -3)
        wire.list_offset(partition, int(time.time() * 1000) - 10_000)


def _new_topic(wire):
    """A partition of its own, so that no test reads the ruins of another."""
    topic = f"victim-{uuid.uuid4().hex[:8]}"
    for _ in range(2):
        wire.call("metadata", 4, topics=[{"name": topic}], allow_auto_topic_creation=True)
    return Partition(topic)


@pytest.mark.parametrize("codec", ["zstd", *(pytest.param(codec, marks=pytest.mark.slow) for codec in SLOW_CODECS)])
def test_batches_that_are_huge_inside_cost_little_memory_and_time(attacked, codec):
    """Zeros without end, a record without end, as many tiny records as are taken, and more than that."""
    tiny = record(b"", key=None)
    bombs = [
        (b"\0" * 140_000_000, 1, TAKEN),
        (b"\xfe\xff\xff\xff\x0f" + b"\0" * 30_000_000, 1, TAKEN),
        (tiny * 250_000, 250_000, TAKEN),
        (tiny * 250_001, 250_001, INVALID_RECORD),
        (tiny * 250_001, 2**31 - 1, INVALID_RECORD),
    ]
    wire = Wire(attacked)
    partition = _new_topic(wire)
    for plain, count, code in bombs:
        payload = _bomb(CODECS[codec], plain)
        if len(payload) < 15_000_000:
            for _ in range(3):
                assert wire.produce(partition, _batch_of(payload, CODECS[codec], count))["error_code"] == code
            _ask_for_times(wire, partition)
    wire.close()


def test_batches_that_promise_a_time_and_do_not_have_it_cost_little(victim, attacked):
    """Each look would go through all of them: their headers name a time that none of their records has."""
    wire = Wire(attacked)
    partition = _new_topic(wire)
    payload = _bomb(CODECS["zstd"], record(b"", key=None) * 100_000)
    for _ in range(200):
        lying = _batch_of(payload, CODECS["zstd"], 100_000, promised_ms=2**40)
        assert wire.produce(partition, lying)["error_code"] == TAKEN
    before = victim.cpu_seconds()
    found = wire.list_offset(partition, int(time.time() * 1000) + 2**39)
    assert found["offset"] in range(100_000, 1_000_000), "the word of a batch near the start is taken"
    assert victim.cpu_seconds() - before < 4
    wire.close()


@pytest.mark.parametrize("count", [2, 100, 250_000])
def test_a_batch_with_fewer_records_than_it_says_is_no_trap(attacked, count):
    wire = Wire(attacked)
    partition = _new_topic(wire)
    assert wire.produce(partition, _batch_of(record(b"x"), 0, count))["error_code"] == TAKEN
    _ask_for_times(wire, partition)
    wire.close()


def test_clients_that_ask_and_never_read_are_bounded(attacked):
    """Forty of them, each with a dozen requests for everything there is."""
    writer = Wire(attacked)
    partition = _new_topic(writer)
    for _ in range(10):
        assert writer.produce(partition, batch(b"x" * 1_000_000))["error_code"] == 0
    end = writer.list_offset(partition, -1)["offset"]
    writer.close()
    greedy = [Wire(attacked) for _ in range(40)]
    wanted = {"partition": 0, "fetch_offset": end - 10, "partition_max_bytes": 50_000_000}
    for wire in greedy:
        for _ in range(12):
            wire.send(
                "fetch",
                4,
                replica_id=-1,
                max_wait=0,
                min_bytes=1,
                max_bytes=50_000_000,
                isolation_level=0,
                topics=[{"topic": partition.topic, "partitions": [wanted]}],
            )
    _wait(lambda: _serves(attacked), "an answer to another client")
    for wire in greedy:
        wire.close()
