"""Avro readers and writers made for one schema: source text, compiled once, that does nothing but this schema's bytes.

A general library walks the schema for every event; on the small events of this system that walk is most of the
cost. The text made here has it behind it: encoding takes a third of the time, decoding less than two thirds. It
covers what the events of this system use (records, arrays, enums, ``[null, X]``, strings, bytes, ints, longs,
doubles) and nothing else; ``Unsupported`` says so to whoever adds a schema. Only schemas of this package are ever
compiled, so no text from outside becomes code.

Encoding: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

# ruff: noqa: S102 - see above

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import index
from typing import Any

from agl_stream.schemas import varint
from agl_stream.schemas.events import Event, Schema

Reader = Callable[[bytes, int], tuple[Event, int]]
"""(bytes, start) -> (event, offset after it)."""
Writer = Callable[[Event, list[bytes]], None]
"""(event, pieces): appends the pieces of the event's body."""

_DOUBLE = struct.Struct("<d")
_LOW, _HIGH = -(1 << 63), 1 << 63
_SHORT = 4096
"""Numbers below it have their encoding ready."""


class Unsupported(Exception):
    """The schema has something that is not compiled."""


def compile_reader(schema: Schema) -> Reader:
    """A reader of ``schema``. It raises ValueError, IndexError or struct.error for bytes that are none of it; an end
    beyond the bytes is the caller's to see, in the offset returned."""
    text = _Text("def read(data, at):")
    _read_value(text, schema, "event")
    text.add("return event, at")
    return text.compiled("read", varint=_varint, double=_DOUBLE.unpack_from)


def compile_writer(schema: Schema) -> Writer:
    """A writer of ``schema``, which fills in defaults. It raises KeyError, TypeError, AttributeError, OverflowError or
    struct.error for an event that does not fit, or hands out a piece that is not bytes."""
    text = _Text("def write(event, pieces):")
    text.add("add = pieces.append")
    _write_value(text, schema, "event")
    return text.compiled("write", short=_SHORTS, long=_long, double=_DOUBLE.pack)


class _Text:
    """Lines of a function, with names for its variables and constants."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._indent = 1
        self._names = 0
        self._constants: dict[str, Any] = {}

    def add(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def open(self, line: str) -> None:
        self.add(line)
        self._indent += 1

    def close(self) -> None:
        self._indent -= 1

    def refuse(self, condition: str, error: str, message: str) -> None:
        self.open(f"if {condition}:")
        self.add(f'raise {error}("{message}")')
        self.close()

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def compiled(self, name: str, **helpers: Any) -> Any:
        scope: dict[str, Any] = {**helpers, **self._constants}
        exec("\n".join(self._lines), scope)
        return scope[name]


def _branches(kind: Any) -> Any:
    """X of ``[null, X]``."""
    if len(kind) != 2 or kind[0] != "null":
        raise Unsupported(f"union {kind}")
    return kind[1]


def _beyond_int(variable: str) -> str:
    return f"not -2147483648 <= {variable} <= 2147483647"


# reading


def _read_value(text: _Text, kind: Any, target: str) -> None:
    if isinstance(kind, list):
        inner = _branches(kind)
        text.add("n = data[at]")
        text.add("at += 1")
        text.open("if n == 0:")
        text.add(f"{target} = None")
        text.close()
        text.open("elif n == 2:")
        _read_value(text, inner, target)
        text.close()
        text.open("else:")
        text.add('raise ValueError("no branch of the union")')
        text.close()
        return
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "record":
        _read_record(text, kind, target)
    elif name == "array":
        _read_array(text, kind["items"], target)
    elif name == "enum":
        _read_number(text)
        text.refuse("n & 1", "ValueError", "no symbol of the enum")
        text.add(f"{target} = {text.constant(tuple(kind['symbols']))}[n >> 1]")
    elif name in ("string", "bytes"):
        _read_number(text)
        text.refuse("n & 1", "ValueError", "a negative length")
        text.add("end = at + (n >> 1)")
        text.add(f"{target} = data[at:end]" + (".decode()" if name == "string" else ""))
        text.add("at = end")
    elif name in ("int", "long"):
        _read_number(text)
        text.add(f"{target} = n >> 1 ^ -(n & 1)")
        if name == "int":
            text.refuse(_beyond_int(target), "ValueError", "an int beyond 32 bits")
    elif name == "double":
        text.add(f"({target},) = double(data, at)")
        text.add("at += 8")
    else:
        raise Unsupported(str(name))


def _read_number(text: _Text) -> None:
    """The next varint into ``n``, still zigzag."""
    text.add("n = data[at]")
    text.add("at += 1")
    text.open("if n > 127:")
    text.add("b = data[at]")
    text.open("if b < 128:")
    text.add("n = n & 127 | b << 7")
    text.add("at += 1")
    text.close()
    text.open("else:")
    text.add("n, at = varint(data, at, n)")
    text.close()
    text.close()


def _read_record(text: _Text, schema: Schema, target: str) -> None:
    parts: list[str] = []
    for field in schema["fields"]:
        variable = text.name()
        _read_value(text, field["type"], variable)
        parts.append(f"{field['name']!r}: {variable}")
    text.add(f"{target} = {{{', '.join(parts)}}}")


def _read_array(text: _Text, items: Any, target: str) -> None:
    count, item = text.name(), text.name()
    text.add(f"{target} = []")
    text.open("while True:")
    _read_number(text)
    text.open("if n == 0:")
    text.add("break")
    text.close()
    text.add(f"{count} = n >> 1")
    text.open("if n & 1:")
    # a negative count is followed by the block's size in bytes
    text.add(f"{count} += 1")
    _read_number(text)
    text.close()
    text.open(f"for _ in range({count}):")
    _read_value(text, items, item)
    text.add(f"{target}.append({item})")
    text.close()
    text.close()


def _varint(data: bytes, at: int, first: int) -> tuple[int, int]:
    """(number, offset after it) of a varint whose first byte, at ``at - 1``, says that it goes on."""
    number, shift = first & 127, 7
    for byte in data[at : at + 9]:
        if byte < 128:
            if shift == 63 and byte > 1:
                break
            return number | byte << shift, at + shift // 7
        number |= (byte & 127) << shift
        shift += 7
    raise ValueError("a number of more than 64 bits, or cut short")


# writing


def _write_value(text: _Text, kind: Any, value: str) -> None:
    """``value``: the name of a variable."""
    if isinstance(kind, list):
        inner = _branches(kind)
        text.open(f"if {value} is None:")
        text.add(r"add(b'\0')")
        text.close()
        text.open("else:")
        text.add(r"add(b'\2')")
        _write_value(text, inner, value)
        text.close()
        return
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "record":
        _write_record(text, kind, value)
    elif name == "array":
        item = text.name()
        text.open(f"if len({value}):")
        text.add(f"add(long(len({value})))")
        text.open(f"for {item} in {value}:")
        _write_value(text, kind["items"], item)
        text.close()
        text.close()
        text.add(r"add(b'\0')")
    elif name == "enum":
        symbols = {symbol: _long(number) for number, symbol in enumerate(kind["symbols"])}
        text.add(f"add({text.constant(symbols)}[{value}])")
    elif name in ("string", "bytes"):
        if name == "string":
            text.add(f"{value} = {value}.encode()")
        text.add(f"n = len({value})")
        text.add(f"add(short[n] if n < {_SHORT} else long(n))")
        text.add(f"add({value})")
    elif name == "int":
        text.refuse(_beyond_int(value), "OverflowError", "an int beyond 32 bits")
        text.add(f"add(long({value}))")
    elif name == "long":
        text.add(f"add(short[{value}] if 0 <= {value} < {_SHORT} else long({value}))")
    elif name == "double":
        text.add(f"add(double({value}))")
    else:
        raise Unsupported(str(name))


def _write_record(text: _Text, schema: Schema, value: str) -> None:
    for field in schema["fields"]:
        variable = text.name()
        if "default" in field:
            default = field["default"]
            shown = "None" if default is None else text.constant(default)
            text.add(f"{variable} = {value}.get({field['name']!r}, {shown})")
        else:
            text.add(f"{variable} = {value}[{field['name']!r}]")
        _write_value(text, field["type"], variable)


def _long(value: int) -> bytes:
    """The zigzag varint of a 64-bit integer."""
    value = index(value)
    if not _LOW <= value < _HIGH:
        raise OverflowError(f"{value} is beyond 64 bits")
    number = varint.zigzag(value)
    if 1 << 49 <= number < 1 << 56:
        # microseconds of this century
        return bytes(
            (
                number & 127 | 128,
                number >> 7 & 127 | 128,
                number >> 14 & 127 | 128,
                number >> 21 & 127 | 128,
                number >> 28 & 127 | 128,
                number >> 35 & 127 | 128,
                number >> 42 & 127 | 128,
                number >> 49,
            )
        )
    return varint.unsigned(number)


_SHORTS = tuple(map(_long, range(_SHORT)))
"""The encodings of small numbers, lengths above all."""
