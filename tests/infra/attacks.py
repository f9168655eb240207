"""What a broken or hostile client may send, by a seed; and a well-behaved client that must not notice."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from crc32c import crc32c

from agl_stream.infra.embedded.log.batch import BatchHeader, build_batch, iter_records, read_header
from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.protocol.wire import entity_codec
from tests.conformance.kafka.clients.port import Partition
from tests.conformance.kafka.clients.wire import Wire, batch, record
from tests.infra.messages import entity_of, random_message

VICTIM = "victim"
"""A topic that the attacks know and may ruin."""
_NAMES = (VICTIM, VICTIM, "victim-group", "consumer", "range", "", "no such thing", "é\x00漢", "x" * 300)
_INTEGERS = (0, 1, -1, -2, 2, 7, 1_000, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_COUNTS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0", b"\0\1\0\0", b"\xff\xff\xff\xff\x7f", b"\xff" * 10)


class Frames:
    """An endless supply of frames, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._apis = list(APIS.values())

    def next(self) -> bytes:
        """Bytes to be sent as they are, with a length before them that is mostly right."""
        kind = self.random.random()
        if kind < 0.15:
            body = self.random.randbytes(self.random.choice([0, 1, 4, 9, 60, 2_000]))
        else:
            body = self._request()
            if kind > 0.45:
                body = self._mutated(body)
        length = len(body)
        if self.random.random() < 0.05:
            length = self.random.choice([0, -1, -(2**31), 2**31 - 1, length + 1, length - 1, 64 * 1024 * 1024])
        return struct.pack(">i", length) + body

    def _request(self) -> bytes:
        """A request that can be read, with values that may be impossible."""
        random = self.random
        api = random.choice(self._apis)
        version = random.randint(api.first, api.last)
        entity = entity_of(api.name, version, "Request")
        header: Any = entity.__header_schema__  # type: ignore[attr-defined]
        parts: list[bytes | memoryview] = [struct.pack(">hhih", api.key, version, random.getrandbits(31), -1)]
        if header.__flexible__:
            parts.append(b"\0")
        try:
            entity_codec(entity)[1](parts, self._bent(random_message(entity, random)))
        except (struct.error, OverflowError):
            parts.append(random.randbytes(20))
        return b"".join(parts)

    def _bent(self, value: Any) -> Any:
        """The message with known names and impossible numbers in some places."""
        random = self.random
        if isinstance(value, dict):
            return {
                name: batches(random) if name == "records" and random.random() < 0.9 else self._bent(item)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._bent(item) for item in value]
        if isinstance(value, str):
            return random.choice(_NAMES) if random.random() < 0.8 else value
        if isinstance(value, int) and not isinstance(value, bool):
            return random.choice(_INTEGERS) if random.random() < 0.5 else value
        return value

    def _mutated(self, body: bytes) -> bytes:
        random, data = self.random, bytearray(body)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(8, len(data)) if len(data) > 8 else 0
            what = random.random()
            if what < 0.5:
                data[at : at + 1] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])])
            elif what < 0.7:
                count = random.choice(_COUNTS)
                data[at : at + len(count)] = count
            elif what < 0.8:
                data[at:at] = b"\xc3\x28\xa0\xa1"  # no UTF-8
            elif what < 0.9:
                del data[at:]
            else:
                data += random.randbytes(50)
        return bytes(data)


def batches(random: Random) -> bytes:
    """A record batch with a right checksum over a header and a payload that are not."""
    if random.random() < 0.3:
        return batch(b"x" * random.randrange(50), key=None, timestamp_ms=random.randrange(2**40))
    header = BatchHeader(
        random.choice(_INTEGERS),
        0,
        0,
        2,
        0,
        random.choice([0, 1, 2, 3, 4, 5, 7, 0x10, 0x20, 0x30, 0x7FFF]),
        random.choice([0, 1, 5, -1, 2**31 - 1, -(2**31)]),
        random.choice(_INTEGERS),
        random.choice(_INTEGERS),
        random.choice([-1, 0, 1, 5, 2**63 - 1]),
        random.choice([-1, 0, 1, 2**15 - 1]),
        random.choice([-1, 0, 1, 2**31 - 1, -(2**31)]),
        1,
    )
    payload = random.choice([record(b"x"), b"", random.randbytes(40), b"\xff" * 20, record(b"x")[:-3]])
    return resealed(build_batch([payload], header._replace(attributes=0)), random, header.attributes)


def resealed(data: bytes, random: Random, attributes: int) -> bytes:
    """The batch with other attributes and a record count that may be wrong, under a checksum that is right."""
    changed = bytearray(data)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">i", changed, 57, random.choice([1, 1, 1, 0, 2, -1, 2**31 - 1, -(2**31)]))
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def assault(bootstrap_servers: str, frames: Frames, count: int) -> None:
    """Send at least so many frames over short connections, which end in every way there is."""
    host, _, port = bootstrap_servers.rpartition(":")
    random, sent = frames.random, 0
    while sent < count:
        with socket.create_connection((host, int(port)), timeout=10) as connected:
            try:
                for _ in range(random.randint(1, 8)):
                    frame = frames.next()
                    sent += 1
                    connected.sendall(frame if random.random() < 0.9 else frame[: random.randrange(len(frame))])
                ending = random.random()
                if ending < 0.3:
                    connected.settimeout(0.02)
                    connected.recv(65_536)
                elif ending < 0.5:
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                elif ending < 0.7:
                    connected.shutdown(socket.SHUT_WR)
            except OSError:
                continue


class Witness:
    """A client that writes and reads all the time; `with` gives what it saw, and fails when it was held up.

    `deadline_seconds` bounds each of its requests, on a machine that does other things besides.
    """

    def __init__(self, bootstrap_servers: str, topic: str, deadline_seconds: float = 30.0) -> None:
        self.partition = Partition(topic)
        self.acknowledged = 0
        self.slowest_seconds = 0.0
        self._error: BaseException | None = None
        self._deadline_seconds = deadline_seconds
        self._address = bootstrap_servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def _run(self) -> None:
        try:
            wire = Wire(self._address)
            wire.socket.settimeout(self._deadline_seconds)
            while not self._stop.wait(0.02):
                began = time.monotonic()
                answer = wire.produce(self.partition, batch(b"%d" % self.acknowledged))
                assert (answer["error_code"], answer["base_offset"]) == (0, self.acknowledged), answer
                found = wire.fetch_one(self.partition, offset=self.acknowledged)
                assert found["error_code"] == 0 and found["records"], found
                self.acknowledged += 1
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            wire.close()
        except BaseException as error:  # raised again where the witness is asked
            self._error = error

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(3 * self._deadline_seconds)
        if self._error is not None:
            raise AssertionError(f"the other client was disturbed after {self.acknowledged} records") from self._error
        assert not self._thread.is_alive(), "the other client hangs"
        assert self.acknowledged > 0, "the other client wrote nothing"
        assert self._read_back() == list(range(self.acknowledged))

    def _read_back(self) -> list[int]:
        """Its records as a new connection finds them."""
        wire, values, offset = Wire(self._address), [], 0
        while offset < self.acknowledged:
            data = bytes(wire.fetch_one(self.partition, offset=offset)["records"])
            at = 0
            while at < len(data):
                header = read_header(data, at)
                for found in iter_records(data[at:], header):
                    values.append(int(found.encoded[:-1].rpartition(b"key")[2][1:]))
                offset, at = header.last_offset + 1, at + header.size_bytes
        wire.close()
        return values


class PeakMemory:
    """The most that a process has had while the `with` block ran, from /proc/PID/statm, looked at all the time."""

    def __init__(self, memory_mib: Callable[[], float]) -> None:
        self._memory_mib = memory_mib
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self.mib = 0.0

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self.mib = max(self.mib, self._memory_mib())

    def __enter__(self) -> PeakMemory:
        self.mib = self._memory_mib()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
