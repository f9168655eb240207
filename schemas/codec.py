"""Events to bytes and back: Avro in the Confluent wire format.

Written: byte 0, schema id as four-byte big-endian integer, Avro body. Read as well: the newer form in which the
id travels in the record header ``__value_schema_id`` (byte 0 and a four-byte id there, too) and the value is the
bare body; the GUID form (byte 1 and 16 bytes) is refused by name.

A codec is cheap per event: what is written and read with the current schema goes through code compiled for it
(:mod:`.compiled`); a body of another version goes through fastavro (:mod:`.foreign`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from agl_stream.errors import BodyUndecodable, EncodeError, NotOurFraming, UnknownSchema
from agl_stream.schemas import events
from agl_stream.schemas.compiled import Reader, Writer, compile_reader, compile_writer
from agl_stream.schemas.foreign import resolving_reader
from agl_stream.schemas.registry import LocalRegistry, Registry

SCHEMA_ID_HEADER = "__value_schema_id"
_FRAME = struct.Struct(">bI")
Headers = Iterable[tuple[str, bytes]] | None
Encoder = Callable[[events.Event], bytes]


class Codec:
    """Encodes and decodes events. Thread-safe once warm; ``decode`` may ask the registry for a new id."""

    def __init__(self, registry: Registry | None = None, *, projections: dict[str, list[str]] | None = None) -> None:
        """``projections``: event type -> names of the fields to decode; the others are skipped. It pays where
        skipped bodies are large (tens of kilobytes); on small events resolution costs more than it saves."""
        self._registry = registry if registry is not None else LocalRegistry()
        self._readers: dict[int, tuple[str, Reader]] = {}
        self._current: set[int] = set()
        self._encoders: dict[str, Encoder] = {}
        self._projections = projections or {}

    def encode(self, event_type: str, event: events.Event) -> bytes:
        """Framed bytes. Raises EncodeError naming the event and field that does not fit."""
        return self.encoder(event_type)(event)

    def encoder(self, event_type: str) -> Encoder:
        """The function that encodes one event type; take it once outside a loop."""
        if (known := self._encoders.get(event_type)) is not None:
            return known
        schema_id = self._registry.id_of(event_type)
        schema = events.current(event_type)
        frame = _FRAME.pack(0, schema_id)
        write = compiled_writer(event_type)
        join = b"".join

        def encode(event: events.Event) -> bytes:
            pieces = [frame]
            try:
                write(event, pieces)
                return join(pieces)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error) as error:
                raise EncodeError(f"{event_type} does not fit its schema: {error}{_culprit(schema, event)}") from None

        self._encoders[event_type] = encode
        return encode

    def decode(self, value: bytes | None, headers: Headers = None) -> tuple[str, events.Event]:
        """(event type, event). Raises NotOurFraming, UnknownSchema or BodyUndecodable; each names its reason."""
        return self.decode_placed(value, headers)[:2]

    def decode_placed(self, value: bytes | None, headers: Headers = None) -> tuple[str, events.Event, int]:
        """As ``decode``; the third is where in ``value`` the Avro body begins, -1 when it was not written with the
        event's current schema. So who keeps Avro need not encode again what the log holds."""
        if value is None:
            raise NotOurFraming("the record has no value (a tombstone)")
        schema_id, start = _schema_id(value, headers)
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._make_reader(schema_id)
        try:
            event, end = reader[1](value, start)
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            EOFError,
            struct.error,
            MemoryError,
            OverflowError,
        ) as error:
            raise BodyUndecodable(f"{reader[0]} (schema id {schema_id}) does not decode: {error!r}") from None
        if end != len(value):
            amiss = f"leaves {len(value) - end} bytes unread" if end < len(value) else "is cut short"
            raise BodyUndecodable(f"{reader[0]} (schema id {schema_id}) {amiss}")
        return reader[0], event, start if schema_id in self._current else -1

    def _make_reader(self, schema_id: int) -> tuple[str, Reader]:
        written = self._registry.schema_of(schema_id)
        name = str(written.get("name", "")) if isinstance(written, dict) else ""
        if name not in events.EVENT_TYPES:
            raise UnknownSchema(f"schema id {schema_id} is {name or 'no record'}, which is no event of agl-stream")
        current = events.current(name)
        wanted = self._projections.get(name)
        if wanted is not None:
            current = _project(current, wanted)
        elif written == current:
            self._current.add(schema_id)
            return name, compiled_reader(name)
        return name, resolving_reader(written, current)


@cache
def compiled_writer(event_type: str) -> Writer:
    """The writer of an event type's current schema."""
    return compile_writer(events.current(event_type))


@cache
def compiled_reader(event_type: str) -> Reader:
    """The reader of an event type's current schema."""
    return compile_reader(events.current(event_type))


def _schema_id(value: bytes, headers: Headers) -> tuple[int, int]:
    for name, content in headers or ():
        if name == SCHEMA_ID_HEADER:
            if len(content) == 5 and content[0] == 0:
                return _FRAME.unpack(content)[1], 0
            raise NotOurFraming(f"header {SCHEMA_ID_HEADER} is not byte 0 and a four-byte id: {content[:20]!r}")
    if len(value) < 5 or value[0] != 0:
        raise NotOurFraming(f"the value begins with {value[:5]!r}, not with byte 0 and a four-byte schema id")
    return _FRAME.unpack_from(value)[1], 5


def _project(schema: events.Schema, wanted: list[str]) -> events.Schema:
    fields = [field for field in schema["fields"] if field["name"] in wanted]
    return {**schema, "fields": fields}


def _culprit(schema: Any, event: events.Event) -> str:
    """Names the first field whose value does not fit; only computed once encoding has failed."""
    from fastavro.validation import validate

    if not isinstance(event, dict):
        return f" (an event is a dict, this is {type(event).__name__})"
    for field in schema["fields"]:
        if field["name"] not in event:
            if "default" not in field:
                return f" (field {field['name']} is missing)"
            continue
        if not validate(event[field["name"]], field["type"], raise_errors=False):
            return f" (field {field['name']}: {event[field['name']]!r:.120})"
    return ""
