"""The APIs the broker speaks, their versions, and the frames around them.

Versions end where the next one needs something the broker does not have (topic ids, KIP-848) or where
a client in use sends what Kafka itself only tolerates: librdkafka 2.16's "all topics" request is
malformed from Metadata version 9 on. ConsumerGroupHeartbeat is there to be refused: clients that find it missing
look for it for ever instead of telling their user.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from agl_stream.infra.embedded.protocol.codecs import codec_of, is_made
from agl_stream.infra.embedded.protocol.unspoken import UNSPOKEN
from agl_stream.infra.embedded.protocol.wire import Cursor, MalformedMessage, Message

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35


@dataclass(frozen=True, slots=True)
class Api:
    """One request type: `name` is kio's module name, versions are inclusive."""

    key: int
    name: str
    first: int
    last: int


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "produce", 3, 9),
        Api(1, "fetch", 4, 12),
        Api(2, "list_offsets", 1, 10),
        Api(3, "metadata", 0, 8),
        Api(8, "offset_commit", 2, 8),
        Api(9, "offset_fetch", 1, 8),
        Api(10, "find_coordinator", 0, 4),
        Api(11, "join_group", 0, 7),
        Api(12, "heartbeat", 0, 4),
        Api(13, "leave_group", 0, 4),
        Api(14, "sync_group", 0, 5),
        Api(15, "describe_groups", 0, 5),
        Api(16, "list_groups", 0, 5),
        Api(17, "sasl_handshake", 0, 1),
        Api(API_VERSIONS, "api_versions", 0, 3),
        Api(19, "create_topics", 2, 5),
        Api(20, "delete_topics", 1, 5),
        Api(21, "delete_records", 0, 2),
        Api(22, "init_producer_id", 0, 4),
        Api(23, "offset_for_leader_epoch", 2, 4),
        Api(24, "add_partitions_to_txn", 0, 3),
        Api(25, "add_offsets_to_txn", 0, 3),
        Api(26, "end_txn", 0, 3),
        Api(27, "write_txn_markers", 1, 1),
        Api(28, "txn_offset_commit", 0, 3),
        Api(29, "describe_acls", 1, 3),
        Api(30, "create_acls", 1, 3),
        Api(31, "delete_acls", 1, 3),
        Api(32, "describe_configs", 1, 4),
        Api(33, "alter_configs", 0, 2),
        Api(34, "alter_replica_log_dirs", 1, 2),
        Api(35, "describe_log_dirs", 1, 4),
        Api(36, "sasl_authenticate", 0, 2),
        Api(37, "create_partitions", 0, 3),
        Api(38, "create_delegation_token", 1, 3),
        Api(39, "renew_delegation_token", 1, 2),
        Api(40, "expire_delegation_token", 1, 2),
        Api(41, "describe_delegation_token", 1, 3),
        Api(42, "delete_groups", 0, 2),
        Api(43, "elect_leaders", 0, 2),
        Api(44, "incremental_alter_configs", 0, 1),
        Api(45, "alter_partition_reassignments", 0, 1),
        Api(46, "list_partition_reassignments", 0, 0),
        Api(47, "offset_delete", 0, 0),
        Api(48, "describe_client_quotas", 0, 1),
        Api(49, "alter_client_quotas", 0, 1),
        Api(50, "describe_user_scram_credentials", 0, 0),
        Api(51, "alter_user_scram_credentials", 0, 0),
        Api(60, "describe_cluster", 0, 1),
        Api(61, "describe_producers", 0, 0),
        Api(65, "describe_transactions", 0, 0),
        Api(66, "list_transactions", 0, 1),
        Api(68, "consumer_group_heartbeat", 0, 1),
        Api(74, "list_config_resources", 0, 1),
        Api(75, "describe_topic_partitions", 0, 0),
    )
}

_FRAME_START = struct.Struct(">hhi")
_NULLABLE_STRING_LENGTH = struct.Struct(">h")
_RESPONSE_START = struct.Struct(">ii")


@dataclass(slots=True)
class Request:
    """One decoded request: `body` is a plain dict (see wire), `size_bytes` the size of its frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Message
    size_bytes: int = 0


class UnknownApi(Exception):
    """A client asks for an API that the broker does not advertise."""

    def __init__(self, key: int, version: int) -> None:
        name = UNSPOKEN.get(key)
        called = f"API {key}" if name is None else f"API {key} ({name})"
        super().__init__(f"{called} version {version} is not spoken here, see docs/embedded-broker.md")


class UnsupportedVersion(Exception):
    """A client asks for a version outside the advertised range of a known API."""

    def __init__(self, api: Api, version: int, correlation_id: int) -> None:
        super().__init__(f"{api.name} version {version}, spoken here are {api.first} to {api.last}")
        self.api = api
        self.correlation_id = correlation_id


def missing_codec(frame: memoryview) -> tuple[str, int] | None:
    """(API, version) of the codec that has to be made before the frame can be answered; see codec_of().

    None when it is there, and for bytes that are no request that is spoken.
    """
    if len(frame) < _FRAME_START.size:
        return None
    key, version, _ = _FRAME_START.unpack_from(frame)
    api = APIS.get(key)
    if api is None:
        return None
    if not api.first <= version <= api.last:
        if key != API_VERSIONS:
            return None
        version = 0
    return None if is_made(api.name, version) else (api.name, version)


def decode_request(frame: memoryview) -> Request:
    """Decode one frame (without its length prefix).

    Raises MalformedMessage for bytes that are no request, UnknownApi, or UnsupportedVersion for a version outside
    the range. The body's `records` are views of the frame.
    """
    try:
        key, version, correlation_id = _FRAME_START.unpack_from(frame)
    except struct.error as error:
        raise MalformedMessage(f"a frame of {len(frame)} bytes is no request") from error
    api = APIS.get(key)
    if api is None:
        raise UnknownApi(key, version)
    if not api.first <= version <= api.last:
        raise UnsupportedVersion(api, version, correlation_id)
    codec = codec_of(api.name, version)
    cursor = Cursor(frame, _FRAME_START.size)
    try:
        (length,) = _NULLABLE_STRING_LENGTH.unpack(cursor.take(2))
        client_id = str(cursor.take(length), "utf-8") if length >= 0 else ""
        if codec.flexible_request_header:
            for _ in range(cursor.count(cursor.unsigned_varint())):
                cursor.unsigned_varint()
                cursor.take(cursor.unsigned_varint())
        body = codec.read_request(cursor)
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedMessage(f"{api.name} version {version}: {error}") from error
    return Request(api, version, correlation_id, client_id, body, len(frame))


def encode_response(request: Request, body: Message) -> tuple[int, list[Any]]:
    """(size, parts) of the response frame, length prefix included. Records are among the parts as they were given."""
    codec = codec_of(request.api.name, request.version)
    parts: list[Any] = [b"", b"\0" if codec.flexible_response_header else b""]
    codec.write_response(parts, body)
    size_bytes = 4 + sum(map(len, parts))
    parts[0] = _RESPONSE_START.pack(size_bytes, request.correlation_id)
    return size_bytes + 4, parts


def supported_versions() -> list[Message]:
    """The `api_keys` of an ApiVersions response."""
    return [dict(api_key=api.key, min_version=api.first, max_version=api.last) for api in APIS.values()]


def encode_unsupported_api_versions(correlation_id: int) -> bytes:
    """Answer to ApiVersions of a version above ours: version 0 with the error, so that the client steps down."""
    header = Request(APIS[API_VERSIONS], 0, correlation_id, "", {})
    _, parts = encode_response(header, dict(error_code=UNSUPPORTED_VERSION, api_keys=supported_versions()))
    return b"".join(parts)
