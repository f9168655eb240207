"""Kafka message codec: kio's message definitions, our own bounded reader and writer.

kio ships a dataclass per message and version, generated from Kafka's own definitions. Only those
definitions are used here. kio's own reader allocates whatever an array count asks for, and a hostile
count aborts the whole process, so a server cannot use it: this reader checks every length against the
bytes that are there and bounds the number of array elements of a request.

A message is a plain dict, keyed by kio's field names, arrays are lists, durations are milliseconds.
Tagged fields are optional by the protocol: the reader skips them, the writer never writes any.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from agl_stream.schemas import varint

MAX_ARRAY_ELEMENTS = 200_000
"""Elements of all arrays of one request together: bounds what a small hostile frame can blow up to."""

Message = dict[str, Any]


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected type and version."""


class Cursor:
    """Read position in one frame."""

    __slots__ = ("at", "buffer", "elements", "end")

    def __init__(self, buffer: memoryview, at: int = 0) -> None:
        self.buffer = buffer
        self.at = at
        self.end = len(buffer)
        self.elements = 0

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, without a copy."""
        start, stop = self.at, self.at + size
        if size < 0 or stop > self.end:
            raise MalformedMessage(f"{size} bytes wanted at {start}, {self.end - start} left")
        self.at = stop
        return self.buffer[start:stop]

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= self.end or shift > 28:
                raise MalformedMessage(f"varint at {self.at} runs past its end")
            byte = self.buffer[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self, elements: int) -> int:
        """An array's element count, refused when the rest of the frame cannot hold it."""
        self.elements += max(elements, 0)
        if elements > self.end - self.at or self.elements > MAX_ARRAY_ELEMENTS:
            raise MalformedMessage(f"an array of {elements} elements at {self.at}")
        return elements


Read = Callable[[Cursor], Any]
Write = Callable[[list[bytes | memoryview], Any], None]

_FIXED = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_INT16, _INT32 = _FIXED["int16"], _FIXED["int32"]
_NO_UUID = uuid.UUID(int=0)


def _fixed_reader(layout: struct.Struct) -> Read:
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:
        at = cursor.at
        cursor.at = at + size
        return unpack(cursor.buffer, at)[0]

    return read


def _fixed_writer(layout: struct.Struct) -> Write:
    pack = layout.pack

    def write(parts: list[bytes | memoryview], value: Any) -> None:
        parts.append(pack(-1 if value is None else value))

    return write


def _length_reader(flexible: bool, legacy: struct.Struct) -> Callable[[Cursor], int]:
    """Length of a string, blob or array, -1 for null."""
    if flexible:
        return lambda cursor: cursor.unsigned_varint() - 1
    return _fixed_reader(legacy)


def _length_writer(flexible: bool, legacy: struct.Struct) -> Callable[[int], bytes]:
    return (lambda length: varint.unsigned(length + 1)) if flexible else legacy.pack


def _blob_reader(length_of: Callable[[Cursor], int], nullable: bool, convert: Callable[[memoryview], Any]) -> Read:
    def read(cursor: Cursor) -> Any:
        length = length_of(cursor)
        if length < 0:
            if not nullable:
                raise MalformedMessage(f"null at {cursor.at} where a value must be")
            return None
        return convert(cursor.take(length))

    return read


def _blob_writer(length_bytes: Callable[[int], bytes], convert: Callable[[Any], bytes | memoryview]) -> Write:
    null = length_bytes(-1)

    def write(parts: list[bytes | memoryview], value: Any) -> None:
        if value is None:
            parts.append(null)
            return
        data = convert(value)
        parts.append(length_bytes(len(data)))
        parts.append(data)

    return write


def _primitive(kind: str, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    if kind in _FIXED:
        return _fixed_reader(_FIXED[kind]), _fixed_writer(_FIXED[kind])
    if kind == "string":
        length_of, length_bytes = _length_reader(flexible, _INT16), _length_writer(flexible, _INT16)
        return _blob_reader(length_of, nullable, lambda data: str(data, "utf-8")), _blob_writer(
            length_bytes, str.encode
        )
    if kind in ("bytes", "records"):
        length_of, length_bytes = _length_reader(flexible, _INT32), _length_writer(flexible, _INT32)
        convert = bytes if kind == "bytes" else memoryview  # records stay a view: the hot path copies nothing
        return _blob_reader(length_of, nullable, convert), _blob_writer(length_bytes, lambda data: data)
    if kind == "uuid":
        return (
            lambda cursor: uuid.UUID(bytes=bytes(cursor.take(16))),
            lambda parts, value: parts.append((value or _NO_UUID).bytes),
        )
    raise TypeError(f"no codec for the Kafka type {kind}")


def _array(read_item: Read, write_item: Write, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    length_of, length_bytes = _length_reader(flexible, _INT32), _length_writer(flexible, _INT32)

    def read(cursor: Cursor) -> list[Any] | None:
        count = cursor.count(length_of(cursor))
        if count < 0:
            if not nullable:
                raise MalformedMessage(f"null at {cursor.at} where an array must be")
            return None
        return [read_item(cursor) for _ in range(count)]

    def write(parts: list[bytes | memoryview], items: Any) -> None:
        parts.append(length_bytes(-1 if items is None else len(items)))
        for item in items or ():
            write_item(parts, item)

    return read, write


def _nullable_entity(read_entity: Read, write_entity: Write) -> tuple[Read, Write]:
    """A single entity that may be absent has one byte before it: -1 for null."""

    def read(cursor: Cursor) -> Message | None:
        return None if cursor.take(1)[0] == 0xFF else read_entity(cursor)

    def write(parts: list[bytes | memoryview], value: Message | None) -> None:
        parts.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            write_entity(parts, value)

    return read, write


def _skip_tagged_fields(cursor: Cursor) -> None:
    for _ in range(cursor.count(cursor.unsigned_varint())):
        cursor.unsigned_varint()
        cursor.take(cursor.unsigned_varint())


def _plain_default(field: dataclasses.Field[Any], is_array: bool, nullable: bool) -> Any:
    if field.default is not dataclasses.MISSING:
        default = field.default
        return default // timedelta(milliseconds=1) if isinstance(default, timedelta) else default
    if is_array:
        return ()
    if nullable:
        return None
    kind = field.metadata.get("kafka_type")
    return "" if kind == "string" else b"" if kind in ("bytes", "records") else _NO_UUID if kind == "uuid" else 0


def _field_codec(field: dataclasses.Field[Any], hint: Any, flexible: bool) -> tuple[Read, Write, Any]:
    arguments = typing.get_args(hint)
    nullable = type(None) in arguments
    if nullable:
        hint = next(argument for argument in arguments if argument is not type(None))
        arguments = typing.get_args(hint)
    is_array = typing.get_origin(hint) is tuple
    item = arguments[0] if is_array else hint
    if dataclasses.is_dataclass(item):
        read, write = entity_codec(typing.cast(type, item))
        if nullable and not is_array:
            read, write = _nullable_entity(read, write)
    else:
        read, write = _primitive(field.metadata["kafka_type"], flexible, nullable and not is_array)
    if is_array:
        read, write = _array(read, write, flexible, nullable)
    return read, write, _plain_default(field, is_array, nullable)


@cache
def entity_codec(entity: type) -> tuple[Read, Write]:
    """Reader and writer of one kio message (or nested) class.

    The writer takes a dict and fills what is missing with the protocol's default (0, "", empty, null).
    """
    flexible: bool = entity.__flexible__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(entity)
    codecs: list[tuple[str, Read, Write, Any]] = []
    absent: Message = {}
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            absent[field.name] = None if field.default is dataclasses.MISSING else field.default
            continue
        codecs.append((field.name, *_field_codec(field, hints[field.name], flexible)))
    readers = [(name, read) for name, read, _, _ in codecs]
    writers = [(name, write, default) for name, _, write, default in codecs]

    def read(cursor: Cursor) -> Message:
        message = dict(absent)
        for name, read_field in readers:
            message[name] = read_field(cursor)
        if flexible:
            _skip_tagged_fields(cursor)
        return message

    def write(parts: list[bytes | memoryview], message: Message) -> None:
        for name, write_field, default in writers:
            write_field(parts, message.get(name, default))
        if flexible:
            parts.append(b"\0")

    return read, write
