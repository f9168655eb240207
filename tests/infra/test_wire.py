"""The codec against kio's own, for every API and version that is spoken; and against bytes that are no message."""

from __future__ import annotations

import dataclasses
import io
import typing
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from agl_stream.infra.embedded.protocol.apis import APIS, decode_request
from agl_stream.infra.embedded.protocol.wire import MAX_ARRAY_ELEMENTS, Cursor, MalformedMessage, entity_codec
from tests.infra.messages import entity_of, random_message, shape_of

SPOKEN = [(api.name, version) for api in APIS.values() for version in range(api.first, api.last + 1)]


def _as_kio(entity: type, message: dict):
    """The same message as kio's class."""
    hints = typing.get_type_hints(entity)
    values = {}
    for field in dataclasses.fields(entity):
        if field.name not in message:
            continue
        item, _, _ = shape_of(hints[field.name])
        value = message[field.name]
        kind = field.metadata.get("kafka_type")
        if value is None:
            pass
        elif dataclasses.is_dataclass(item):
            value = tuple(_as_kio(item, part) for part in value) if isinstance(value, list) else _as_kio(item, value)
        elif isinstance(value, list):
            value = tuple(value)
        elif kind in ("timedelta_i32", "timedelta_i64"):
            value = timedelta(milliseconds=value)
        elif kind == "error_code":
            value = ErrorCode(value)
        elif kind == "datetime_i64":
            value = datetime.fromtimestamp(value // 1000, tz=UTC)
        values[field.name] = value
    return entity(**values)


def _plain(value):
    """What the reader returns, made comparable: views become bytes."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(("name", "version"), SPOKEN)
def test_requests_are_read_as_kio_writes_them(name, version):
    entity = entity_of(name, version, "Request")
    for seed in range(3):
        message = random_message(entity, Random(seed))
        written = io.BytesIO()
        entity_writer(entity)(written, _as_kio(entity, message))
        cursor = Cursor(memoryview(written.getvalue()))
        read = _plain(entity_codec(entity)[0](cursor))
        assert cursor.at == cursor.end
        assert {key: read[key] for key in message} == message


@pytest.mark.parametrize(("name", "version"), SPOKEN)
def test_responses_are_written_as_kio_writes_them(name, version):
    entity = entity_of(name, version, "Response")
    for seed in range(3):
        message = random_message(entity, Random(seed))
        expected = io.BytesIO()
        entity_writer(entity)(expected, _as_kio(entity, message))
        parts: list = []
        entity_codec(entity)[1](parts, message)
        assert b"".join(parts) == expected.getvalue()


@settings(max_examples=500, deadline=None)
@given(
    api=st.sampled_from(list(APIS.values())),
    offset=st.integers(0, 12),
    tail=st.binary(max_size=80),
)
def test_any_bytes_are_a_request_or_are_refused(api, offset, tail):
    version = min(api.first + offset, api.last)
    frame = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + tail
    try:
        decode_request(memoryview(frame))
    except MalformedMessage:
        pass


@pytest.mark.parametrize("count", [2**31 - 1, MAX_ARRAY_ELEMENTS + 1, 1_000])
def test_array_counts_beyond_the_frame_are_refused_before_anything_is_allocated(count):
    metadata = b"\0\x03\0\x01" + bytes(4) + b"\xff\xff" + count.to_bytes(4, "big") + bytes(500)
    with pytest.raises(MalformedMessage, match="array"):
        decode_request(memoryview(metadata))


def test_many_tiny_elements_are_refused():
    """A frame of empty strings would otherwise cost a hundred times its size."""
    count = MAX_ARRAY_ELEMENTS + 1
    metadata = b"\0\x03\0\x01" + bytes(4) + b"\xff\xff" + count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(MalformedMessage, match="array"):
        decode_request(memoryview(metadata))
