"""Single requests of any API over a raw connection, for what clients do not let their users send."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import Any

import pytest

from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.protocol.wire import Cursor, entity_codec

KEYS = {api.name: api.key for api in APIS.values()}


def _entity(name: str, version: int, kind: str) -> Any:
    prefix = "".join(part.title() for part in name.split("_"))
    return getattr(importlib.import_module(f"kio.schema.{name}.v{version}"), prefix + kind)


def encode(name: str, version: int, body: dict[str, Any], client_id: str = "") -> bytes:
    """A request frame without its length."""
    entity = _entity(name, version, "Request")
    parts: list[Any] = [struct.pack(">hhih", KEYS[name], version, 7, len(client_id)), client_id.encode()]
    if entity.__header_schema__.__flexible__:
        parts.append(b"\0")
    entity_codec(entity)[1](parts, body)
    return b"".join(parts)


def decode(name: str, version: int, frame: bytes) -> dict[str, Any]:
    """The body of an answer."""
    entity = _entity(name, version, "Response")
    cursor = Cursor(memoryview(frame), 5 if entity.__header_schema__.__flexible__ else 4)
    body = entity_codec(entity)[0](cursor)
    assert cursor.at == cursor.end
    return body


@pytest.fixture(scope="session")
def ask() -> Callable[..., dict[str, Any]]:
    """ask(connection, api name, version, body, client id) sends and returns the answer's body."""

    def send(connection: Any, name: str, version: int, body: dict[str, Any], client_id: str = "") -> dict[str, Any]:
        connection.send_frame(encode(name, version, body, client_id))
        answer = connection.read_frame()
        assert answer is not None, f"the broker closed the connection instead of answering {name}"
        return decode(name, version, answer)

    return send


@pytest.fixture(scope="session")
def request_frame() -> Callable[..., bytes]:
    return encode
