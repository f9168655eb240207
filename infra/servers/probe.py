"""Asking a server whether it serves: the smallest question of its own protocol, answered within a short time."""

from __future__ import annotations

import http.client
import socket
import struct
import urllib.error
import urllib.parse
import urllib.request

_PATIENCE_SECONDS = 2.0

_CQL_OPTIONS = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0])  # Native protocol 4, opcode 5, no body.
_CQL_SUPPORTED = 6
_KAFKA_API_VERSIONS = 18
_POSTGRES_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


def answers_http(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as response:  # noqa: S310 - a server of ours
            return response.status == 200
    except (OSError, urllib.error.HTTPError, http.client.HTTPException):
        return False


def answers_cql(host: str, port: int) -> bool:
    """Whether a Cassandra node answers OPTIONS."""
    return _ask(host, port, _CQL_OPTIONS, 9)[4:5] == bytes([_CQL_SUPPORTED])


def answers_kafka(host: str, port: int) -> bool:
    """Whether a broker answers ApiVersions on a listener without TLS (which SASL does not forbid)."""
    correlation_id = 20_240_117
    header = struct.pack(">hhih", _KAFKA_API_VERSIONS, 0, correlation_id, -1)
    answer = _ask(host, port, struct.pack(">i", len(header)) + header, 8)
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == correlation_id


def answers_postgres(host: str, port: int) -> bool:
    """Whether PostgreSQL says if it takes TLS, which it does before it asks who is there."""
    return _ask(host, port, _POSTGRES_SSL_REQUEST, 1) in (b"S", b"N")


def takes_connections(host: str, port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection((host, port), _PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


def serves(engine: str, address: str) -> bool:
    """Whether all nodes of `engine` ("kafka", "cassandra" ...) answer now at `address`, which is `Engine.address`."""
    if engine == "connect":
        return answers_http(address + "/connectors")
    if engine == "registry":
        return answers_http(address + "/subjects")
    if engine == "postgres":
        parts = urllib.parse.urlsplit(address)
        return answers_postgres(parts.hostname or "", parts.port or 0)
    ask = {"kafka": answers_kafka, "cassandra": answers_cql}[engine]
    nodes = [node.rpartition(":") for node in address.split(",")]
    return all(ask(host, int(port)) for host, _, port in nodes)


def _ask(host: str, port: int, question: bytes, size: int) -> bytes:
    """The first `size` bytes of the answer; less when there is none."""
    answer = b""
    try:
        with socket.create_connection((host, port), _PATIENCE_SECONDS) as connection:
            connection.sendall(question)
            while len(answer) < size and (more := connection.recv(size - len(answer))):
                answer += more
    except OSError:
        pass  # Nobody, or not in time: the answer is short, and the caller sees it.
    return answer
