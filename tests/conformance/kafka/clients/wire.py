"""The protocol without a client: single requests, for what clients hide or would never send."""

from __future__ import annotations

import importlib
import socket
import struct
import time
from typing import Any

from agl_stream.infra.embedded.log.batch import BatchHeader, build_batch
from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.protocol.wire import Cursor, entity_codec
from agl_stream.schemas import varint
from tests.conformance.kafka.clients.port import SECONDS, Partition

_KEYS = {api.name: api.key for api in APIS.values()}
_RETRIABLE_COORDINATOR = (14, 15, 16)
"""Loading, not available, not here: Kafka answers so until its internal topics exist."""


class Wire:
    """One connection to a broker; `call` sends one request and returns the answer's fields as they came."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self._correlation_id = 0

    def call(self, name: str, version: int, **body: Any) -> dict[str, Any]:
        """Missing fields are the protocol's defaults. Raises ConnectionError when the broker closes."""
        self.send(name, version, **body)
        return self.receive(name, version)

    def send(self, name: str, version: int, **body: Any) -> None:
        request = _entity(name, version, "Request")
        self._correlation_id += 1
        parts: list[bytes | memoryview] = [
            struct.pack(">hhih4s", _KEYS[name], version, self._correlation_id, 4, b"wire")
        ]
        if request.__header_schema__.__flexible__:
            parts.append(b"\0")
        entity_codec(request)[1](parts, body)
        frame = b"".join(parts)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, name: str, version: int) -> dict[str, Any]:
        response = _entity(name, version, "Response")
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        assert struct.unpack_from(">i", frame)[0] == self._correlation_id
        cursor = Cursor(memoryview(frame), 5 if response.__header_schema__.__flexible__ else 4)
        return entity_codec(response)[0](cursor)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed by the broker")
            data += chunk
        return data

    def close(self) -> None:
        self.socket.close()

    # Requests that several cases make

    def coordinated(self, name: str, version: int, **body: Any) -> dict[str, Any]:
        """As call(), again while the engine's coordinator is not there yet."""
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.call(name, version, **body)
            if answer.get("error_code") not in _RETRIABLE_COORDINATOR or time.monotonic() > deadline:
                return answer
            self._wake_coordinators()

    def _wake_coordinators(self) -> None:
        """Apache Kafka has none until the first client looks for one."""
        for kind in (0, 1):
            self.call("find_coordinator", 2, key="wire", key_type=kind)
        time.sleep(0.05)

    def produce(
        self, partition: Partition, records: bytes, *, acks: int = -1, name: str | None = None
    ) -> dict[str, Any]:
        """The answer for the one partition."""
        data = {"index": partition.number, "records": records}
        answer = self.call(
            "produce",
            8,
            transactional_id=name,
            acks=acks,
            timeout=10_000,
            topic_data=[{"name": partition.topic, "partition_data": [data]}],
        )
        return answer["responses"][0]["partition_responses"][0]

    def fetch(self, *partitions: Partition, offset: int = 0, **settings: Any) -> dict[str, Any]:
        """The whole answer; `settings` replace those of a fetch that takes everything and waits for nothing."""
        named = {"partition_max_bytes": 1_000_000, "current_leader_epoch": -1}
        named |= {key: settings.pop(key) for key in list(settings) if key in named}
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, number in partitions:
            wanted = {"partition": number, "fetch_offset": offset, "last_fetched_epoch": -1, "log_start_offset": -1}
            topics.setdefault(topic, []).append({**wanted, **named})
        body = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 10_000_000,
            "session_id": 0,
            "session_epoch": -1,
            "rack_id": "",
            **settings,
        }
        return self.call(
            "fetch", 12, topics=[{"topic": topic, "partitions": wanted} for topic, wanted in topics.items()], **body
        )

    def fetch_one(self, partition: Partition, **settings: Any) -> dict[str, Any]:
        """The answer for the one partition."""
        return self.fetch(partition, **settings)["responses"][0]["partitions"][0]

    def list_offset(self, partition: Partition, timestamp: int, **more: Any) -> dict[str, Any]:
        wanted = {"partition_index": partition.number, "current_leader_epoch": -1, "timestamp": timestamp, **more}
        answer = self.call("list_offsets", 7, replica_id=-1, topics=[{"name": partition.topic, "partitions": [wanted]}])
        return answer["topics"][0]["partitions"][0]

    def producer_id(self, name: str | None = None, *, timeout_ms: int = 60_000) -> tuple[int, int]:
        """A producer id and its epoch."""
        answer = self.coordinated(
            "init_producer_id",
            4,
            transactional_id=name,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer["error_code"] == 0, answer
        return answer["producer_id"], answer["producer_epoch"]

    def join(self, group: str, member_id: str = "", *, version: int = 5, **changes: Any) -> dict[str, Any]:
        """JoinGroup as a consumer with one protocol; with an empty id, joins again with the id that is given."""
        body = {
            "group_id": group,
            "session_timeout": 6_000,
            "rebalance_timeout": 6_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\0\xff\xff\xff\xff"}],
            **changes,
        }
        answer = self.coordinated("join_group", version, **body)
        if answer["error_code"] == 79 and not member_id:
            return self.join(group, answer["member_id"], version=version, **changes)
        return answer

    def sync(self, group: str, member_id: str, generation: int, assignment: bytes | None = b"all") -> dict[str, Any]:
        """SyncGroup; a leader gives itself the assignment, None is for the others."""
        assignments = [] if assignment is None else [{"member_id": member_id, "assignment": assignment}]
        return self.call(
            "sync_group",
            3,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
            assignments=assignments,
        )

    def commit(
        self,
        group: str,
        partition: Partition,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        note: str = "",
    ) -> int:
        """OffsetCommit; returns the error code of the partition."""
        row = {
            "partition_index": partition.number,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": note,
        }
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "topics": [{"name": partition.topic, "partitions": [row]}],
        }
        deadline = time.monotonic() + SECONDS
        while True:
            code = self.call("offset_commit", 7, **body)["topics"][0]["partitions"][0]["error_code"]
            if code not in _RETRIABLE_COORDINATOR or time.monotonic() > deadline:
                return code
            self._wake_coordinators()


def _entity(name: str, version: int, kind: str) -> Any:
    module = importlib.import_module(f"kio.schema.{name}.v{version}")
    return getattr(module, "".join(part.title() for part in name.split("_")) + kind)


def record(value: bytes | None, *, offset_delta: int = 0, key: bytes | None = None) -> bytes:
    """One record as it stands in a batch."""
    body = b"\0" + _number(0) + _number(offset_delta) + _blob(key) + _blob(value) + b"\0"
    return _number(len(body)) + body


def _number(value: int) -> bytes:
    return varint.unsigned(varint.zigzag(value))


def _blob(data: bytes | None) -> bytes:
    return _number(-1) if data is None else _number(len(data)) + data


def batch(
    *values: bytes,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int | None = None,
    key: bytes | None = b"key",
) -> bytes:
    """A record batch as a producer sends it."""
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    encoded = [record(value, offset_delta=number, key=key) for number, value in enumerate(values)]
    attributes = 0x10 if transactional else 0
    like = BatchHeader(0, 0, 0, 2, 0, attributes, len(values) - 1, now_ms, now_ms, *producer, sequence, len(values))
    return build_batch(encoded, like)
