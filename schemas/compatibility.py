"""FULL_TRANSITIVE: every version of an event reads what every other version wrote."""

from __future__ import annotations

import json

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse

from agl_stream.errors import SchemaIncompatible
from agl_stream.schemas import events


def differences(reader: events.Schema, writer: events.Schema) -> list[str]:
    """Why ``reader`` cannot read what ``writer`` wrote; empty when it can."""
    result = ReaderWriterCompatibilityChecker().get_compatibility(parse(json.dumps(reader)), parse(json.dumps(writer)))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    return [f"{message} at {place}" for message, place in zip(result.messages, result.locations, strict=False)] or [
        "incompatible"
    ]


def check_history(versions: tuple[events.Schema, ...] | list[events.Schema], name: str) -> None:
    """Raises SchemaIncompatible naming the first pair of versions that cannot read each other."""
    for r, reader in enumerate(versions, 1):
        for w, writer in enumerate(versions, 1):
            if r != w and (found := differences(reader, writer)):
                raise SchemaIncompatible(f"{name} v{r} cannot read v{w}: {'; '.join(found)}")


def style_faults(schema: events.Schema) -> list[str]:
    """Rules of ours beyond Avro's: a doc on every record, enum and field; an ``unknown``-like first symbol and a
    default on every enum."""
    faults: list[str] = []

    def walk(node: object, path: str) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item, path)
        if not isinstance(node, dict):
            return
        if node.get("type") in ("record", "enum") and not node.get("doc"):
            faults.append(f"{path}: {node.get('name')} has no doc")
        if node.get("type") == "enum" and node.get("default") not in node.get("symbols", ()):
            faults.append(f"{path}: enum {node.get('name')} has no default symbol")
        for field in node.get("fields", ()):
            if not field.get("doc"):
                faults.append(f"{path}.{field['name']} has no doc")
            walk(field["type"], f"{path}.{field['name']}")
        for inner in ("items", "values"):
            walk(node.get(inner), path)
        if isinstance(node.get("type"), dict | list):
            walk(node["type"], path)

    walk(schema, str(schema.get("name")))
    return faults
