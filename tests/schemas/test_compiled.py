"""The compiled readers and writers against fastavro: the same bytes, the same events, the same refusals."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.schemas import events
from agl_stream.schemas.codec import compiled_reader, compiled_writer
from agl_stream.schemas.compiled import Unsupported, compile_reader, compile_writer

PARSED: dict[str, Any] = {
    name: fastavro.parse_schema(json.loads(json.dumps(events.current(name)))) for name in events.EVENT_TYPES
}
_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20) | st.integers(0, 5000).map(lambda length: "x" * length),
    "bytes": st.binary(max_size=20) | st.integers(4090, 4100).map(bytes),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(2**48, 2**57) | st.integers(-70, 5000),
    "double": st.floats(allow_nan=False),
}
REFUSED = (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error)


def of(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.none() | of(kind[1])
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "record":
        return st.fixed_dictionaries({field["name"]: of(field["type"]) for field in kind["fields"]})
    if name == "array":
        return st.lists(of(kind["items"]), max_size=3)
    if name == "enum":
        return st.sampled_from(kind["symbols"])
    return _PLAIN[name]


@st.composite
def typed_events(draw: st.DrawFn) -> tuple[str, Any]:
    """An event with some of its optional fields left out."""
    event_type = draw(st.sampled_from(events.EVENT_TYPES))
    schema = events.current(event_type)
    event = draw(of(schema))
    optional = [field["name"] for field in schema["fields"] if "default" in field]
    for name in draw(st.sets(st.sampled_from(optional), max_size=4)) if optional else ():
        del event[name]
    return event_type, event


def written(event_type: str, event: Any) -> bytes:
    pieces: list[bytes] = []
    compiled_writer(event_type)(event, pieces)
    return b"".join(pieces)


def oracle_bytes(event_type: str, event: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[event_type], event)
    return out.getvalue()


@settings(max_examples=300, deadline=None)
@given(typed_events())
def test_writes_the_bytes_that_fastavro_writes_and_reads_them_back(case: tuple[str, Any]) -> None:
    event_type, event = case
    body = written(event_type, event)
    assert body == oracle_bytes(event_type, event)
    read, end = compiled_reader(event_type)(b"frame" + body, 5)
    assert end == 5 + len(body)
    assert read == fastavro.schemaless_reader(io.BytesIO(body), PARSED[event_type], None)


@settings(max_examples=300, deadline=None)
@given(typed_events(), st.data())
def test_damaged_bytes_are_read_as_fastavro_reads_them_or_refused(case: tuple[str, Any], data: st.DataObject) -> None:
    event_type, event = case
    body = bytearray(written(event_type, event))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(body)
    try:
        read, end = compiled_reader(event_type)(damaged, 0)
    except (ValueError, IndexError, struct.error):
        return
    if end > len(damaged):
        return
    source = io.BytesIO(damaged)
    expected = fastavro.schemaless_reader(source, PARSED[event_type], None)
    assert (repr(read), end) == (repr(expected), source.tell())


@pytest.mark.parametrize("event_type", events.EVENT_TYPES)
def test_every_field_of_a_wrong_type_is_refused(event_type: str) -> None:
    schema = events.current(event_type)
    event = oracle_event(schema)
    for field in schema["fields"]:
        for wrong in (object(), 1.5j):
            with pytest.raises(REFUSED):
                written(event_type, {**event, field["name"]: wrong})


def oracle_event(schema: Any) -> Any:
    """The smallest event: fields without default only."""
    smallest = {"string": "", "bytes": b"", "int": 0, "long": 0, "double": 0.0}
    made: dict[str, Any] = {}
    for field in schema["fields"]:
        kind = field["type"]
        name = kind["type"] if isinstance(kind, dict) else kind
        if "default" in field:
            continue
        if isinstance(kind, list):
            made[field["name"]] = None
        elif name == "record":
            made[field["name"]] = oracle_event(kind)
        elif name == "array":
            made[field["name"]] = []
        elif name == "enum":
            made[field["name"]] = kind["symbols"][0]
        else:
            made[field["name"]] = smallest[name]
    return made


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("int", -(2**31) - 1),
        ("long", 2**63),
        ("long", -(2**63) - 1),
        ("long", 1.0),
        ("long", None),
        ("bytes", "text"),
        ("bytes", None),
        ("string", b"bytes"),
        ("string", "\ud800"),
        ("double", "1.0"),
        ({"type": "array", "items": "long"}, None),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, "b"),
    ],
)
def test_values_out_of_range_or_of_another_type_are_refused(kind: Any, value: Any) -> None:
    write = compile_writer({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]})
    pieces: list[bytes] = []
    with pytest.raises(REFUSED):
        write({"x": value}, pieces)
        b"".join(pieces)


@pytest.mark.parametrize("body", [b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\xff" * 3, b"\x80"])
def test_numbers_beyond_64_bits_or_cut_short_are_refused(body: bytes) -> None:
    read = compile_reader({"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}]})
    with pytest.raises((ValueError, IndexError)):
        read(body, 0)


def test_blocks_with_a_size_are_read() -> None:
    """Other writers put an array's size in bytes before its items, after a negative count."""
    kind = {"type": "array", "items": "long"}
    read = compile_reader({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]})
    assert read(b"\x03\x04\x02\x04\x02\x06\x00", 0) == ({"x": [1, 2, 3]}, 7)


@pytest.mark.parametrize("kind", ["boolean", ["null", "string", "long"], {"type": "map", "values": "long"}])
def test_what_is_not_compiled_is_named(kind: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    for make in (compile_reader, compile_writer):
        with pytest.raises(Unsupported):
            make(schema)
