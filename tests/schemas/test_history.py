"""The .avsc history keeps its promise, and what old versions wrote decodes for ever."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from agl_stream.errors import SchemaIncompatible
from agl_stream.schemas import compatibility, events
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import LocalRegistry

GOLDEN = Path(__file__).parents[1] / "golden" / "schemas"


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*.bin"))


@pytest.mark.parametrize("event_type", events.EVENT_TYPES)
def test_every_version_reads_every_other(event_type: str) -> None:
    compatibility.check_history(events.history(event_type), event_type)


@pytest.mark.parametrize("event_type", events.EVENT_TYPES)
def test_every_field_is_documented_and_every_enum_has_an_unknown(event_type: str) -> None:
    assert compatibility.style_faults(events.current(event_type)) == []


def test_a_field_without_default_is_refused() -> None:
    first = events.current("ControlRequested")
    second = copy.deepcopy(first)
    second["fields"].append({"name": "urgency", "type": "int", "doc": "How urgent."})
    with pytest.raises(SchemaIncompatible, match=r"v2 cannot read v1.*urgency"):
        compatibility.check_history([first, second], "ControlRequested")


def test_dropping_and_readding_with_another_type_is_refused_across_versions() -> None:
    """Each step alone would pass; only the transitive check sees it."""
    first = events.current("ControlRequested")
    without = copy.deepcopy(first)
    without["fields"] = [f for f in without["fields"] if f["name"] != "reason"]
    again = copy.deepcopy(without)
    again["fields"].append({"name": "reason", "type": ["null", "int"], "default": None, "doc": "A code."})
    compatibility.check_history([first, without], "ControlRequested")
    compatibility.check_history([without, again], "ControlRequested")
    with pytest.raises(SchemaIncompatible):
        compatibility.check_history([first, without, again], "ControlRequested")


def test_there_is_a_golden_sample_of_every_version() -> None:
    expected = {f"{t}.v{n}" for t in events.EVENT_TYPES for n in range(1, len(events.history(t)) + 1)}
    assert {path.stem for path in golden_files()} == expected


@pytest.mark.parametrize("path", golden_files(), ids=lambda p: p.stem)
def test_golden_sample_still_decodes_to_the_same_event(path: Path) -> None:
    """The .bin holds the body without frame; the schema id is the version's place in the local registry."""
    event_type, version = path.stem.rsplit(".v", 1)
    registry = LocalRegistry()
    wanted = events.history(event_type)[int(version) - 1]
    schema_id = next(i for i in range(1, 1000) if registry.schema_of(i) == wanted)
    decoded_type, event = Codec(registry).decode(b"\0" + schema_id.to_bytes(4, "big") + path.read_bytes())
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert decoded_type == event_type
    written_then = {name: value for name, value in jsonable(event).items() if name in expected}
    assert written_then == expected


def jsonable(value: object) -> object:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    return [jsonable(v) for v in value] if isinstance(value, list) else value
