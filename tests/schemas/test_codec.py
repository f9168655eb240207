"""Round trips, the two framings, and the four kinds of poison."""

from __future__ import annotations

import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.errors import BodyUndecodable, DecodeError, EncodeError, NotOurFraming, UnknownSchema
from agl_stream.schemas import events
from agl_stream.schemas.codec import SCHEMA_ID_HEADER, Codec
from agl_stream.schemas.registry import LocalRegistry

sys.path.insert(0, str(Path(__file__).parent))
from samples import FULL, minimal


@pytest.mark.parametrize("event_type", events.EVENT_TYPES)
def test_full_event_round_trips(event_type: str) -> None:
    codec = Codec()
    assert codec.decode(codec.encode(event_type, FULL[event_type])) == (event_type, FULL[event_type])


@pytest.mark.parametrize("event_type", events.EVENT_TYPES)
def test_minimal_event_gets_every_default(event_type: str) -> None:
    codec = Codec()
    schema = events.current(event_type)
    _, event = codec.decode(codec.encode(event_type, minimal(schema)))
    assert set(event) == {field["name"] for field in schema["fields"]}


def test_sample_covers_every_field() -> None:
    for event_type in events.EVENT_TYPES:
        assert set(FULL[event_type]) == {field["name"] for field in events.current(event_type)["fields"]}


def test_header_form_is_read() -> None:
    codec = Codec()
    framed = codec.encode("ControlRequested", FULL["ControlRequested"])
    headers = [("other", b"x"), (SCHEMA_ID_HEADER, framed[:5])]
    assert codec.decode(framed[5:], headers)[1] == FULL["ControlRequested"]


@pytest.mark.parametrize(
    ("value", "headers", "error"),
    [
        (None, None, NotOurFraming),
        (b"", None, NotOurFraming),
        (b"\0\0\0", None, NotOurFraming),
        (b'{"rollout_id": 1}', None, NotOurFraming),
        (b"\0\x7f\xff\xff\xff....", None, UnknownSchema),
        (b"body", [(SCHEMA_ID_HEADER, b"\x01" + b"g" * 16)], NotOurFraming),
    ],
)
def test_poison_is_named(value: bytes | None, headers: list[tuple[str, bytes]] | None, error: type) -> None:
    with pytest.raises(error) as caught:
        Codec().decode(value, headers)
    assert caught.value.reason_code


def test_truncated_and_overlong_bodies_are_undecodable() -> None:
    codec = Codec()
    framed = codec.encode("SpanRecorded", FULL["SpanRecorded"])
    for cut in range(5, len(framed)):
        with pytest.raises(BodyUndecodable):
            codec.decode(framed[:cut])
    with pytest.raises(BodyUndecodable, match="unread"):
        codec.decode(framed + b"x")


@given(st.binary(max_size=400), st.integers(1, 11))
def test_arbitrary_bytes_never_raise_anything_else(body: bytes, schema_id: int) -> None:
    try:
        Codec().decode(struct.pack(">bI", 0, schema_id) + body)
    except DecodeError:
        pass


def test_misfit_names_the_field() -> None:
    with pytest.raises(EncodeError, match="field rollout_id: 3"):
        Codec().encode("ControlRequested", {**FULL["ControlRequested"], "rollout_id": 3})
    with pytest.raises(EncodeError, match="span_id is missing"):
        Codec().encode("SpanRecorded", {"rollout_id": "ro-1", "attempt_id": "at-1"})


def test_an_older_writer_is_resolved_to_the_current_schema() -> None:
    """A writer whose schema lacks our newest fields: the reader fills their defaults."""
    old = json.loads(json.dumps(events.current("ControlRequested")))
    old["fields"] = [f for f in old["fields"] if f["name"] not in ("payload", "reason")]

    class OneMore(LocalRegistry):
        def schema_of(self, schema_id: int) -> events.Schema:
            return old if schema_id == 500 else super().schema_of(schema_id)

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(old), {"rollout_id": "ro-1", "action": "cancel"})
    _, event = Codec(OneMore()).decode(struct.pack(">bI", 0, 500) + out.getvalue())
    assert (event["payload"], event["reason"], event["action"]) == ("{}", None, "cancel")


def test_an_unknown_enum_symbol_becomes_unknown() -> None:
    newer = json.loads(json.dumps(events.current("ControlRequested")))
    action = next(f for f in newer["fields"] if f["name"] == "action")
    action["type"]["symbols"].append("teleport")

    class OneMore(LocalRegistry):
        def schema_of(self, schema_id: int) -> events.Schema:
            return newer if schema_id == 500 else super().schema_of(schema_id)

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(newer), {"rollout_id": "ro-1", "action": "teleport"})
    _, event = Codec(OneMore()).decode(struct.pack(">bI", 0, 500) + out.getvalue())
    assert event["action"] == "unknown"


def foreign(change: Any) -> Codec:
    """A codec whose registry has ControlRequested as ``change`` makes it, under id 500."""
    schema = json.loads(json.dumps(events.current("ControlRequested")))
    change(schema["fields"])

    class OneMore(LocalRegistry):
        def schema_of(self, schema_id: int) -> events.Schema:
            return schema if schema_id == 500 else super().schema_of(schema_id)

    return Codec(OneMore())


def field(name: str, kind: Any) -> Any:
    return lambda fields: fields.append({"name": name, "type": kind})


def retyped(name: str, kind: Any) -> Any:
    return lambda fields: next(f for f in fields if f["name"] == name).update(type=kind)


_EMPTY = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (retyped("rollout_id", "long"), "mismatch"),
        (lambda fields: fields.remove(next(f for f in fields if f["name"] == "rollout_id")), "No default"),
        (retyped("rollout_id", "nonsense"), "not Avro"),
        (field("self", ["null", "ControlRequested"]), "contains itself"),
        (field("many", {"type": "array", "items": "null"}), "take no bytes"),
        (field("many", {"type": "array", "items": _EMPTY}), "take no bytes"),
        (
            lambda fields: [field("one", _EMPTY)(fields), field("m", {"type": "array", "items": "Empty"})(fields)],
            "no bytes",
        ),
        (field("deep", json.loads('{"type": "array", "items": ' * 40 + '"long"' + "}" * 40)), "32 levels"),
    ],
)
def test_a_foreign_schema_that_does_not_fit_is_a_reject_and_no_crash(change: Any, said: str) -> None:
    """Somebody registered another schema under our event's name: a reject for the record, never the end of a loop."""
    codec = foreign(change)
    with pytest.raises(DecodeError, match=said):
        codec.decode(struct.pack(">bI", 0, 500) + bytes(60))
    with pytest.raises(DecodeError):
        codec.decode(struct.pack(">bI", 0, 500) + b"\xfe\xff\xff\xff\xff\x0f" * 20)


def test_projection_decodes_only_the_wanted_fields() -> None:
    full = Codec()
    narrow = Codec(projections={"SpanRecorded": ["rollout_id", "reward"]})
    _, event = narrow.decode(full.encode("SpanRecorded", FULL["SpanRecorded"]))
    assert event == {"rollout_id": "ro-1", "reward": 1.0}
