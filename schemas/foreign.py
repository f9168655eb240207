"""Bodies written with another schema than ours: an older or newer version, or somebody's own. fastavro resolves them.

The schema comes from a registry that others write to, so it is looked at first: what would let a small record take
any amount of stack or memory is refused.
"""

from __future__ import annotations

import io
import json
from typing import Any

from agl_stream.errors import UnknownSchema
from agl_stream.schemas.compiled import Reader
from agl_stream.schemas.events import Event, Schema

_DEEPEST = 32


def resolving_reader(written: Schema, current: Schema) -> Reader:
    """Reads bodies of ``written`` as ``current``. Raises UnknownSchema when the two do not fit or ``written`` is not
    acceptable. The reader raises ValueError for bytes that do not follow ``written``."""
    _Inspection().look_at(written)
    # imported where needed: most processes never meet another version, and it takes 5 MB
    import fastavro

    try:
        writer: Any = fastavro.parse_schema(json.loads(json.dumps(written)))
        reader: Any = None if written == current else fastavro.parse_schema(json.loads(json.dumps(current)))
    except Exception as error:  # noqa: BLE001 - the library has no base class for them
        raise UnknownSchema(f"a schema that is not Avro: {error!r}") from None

    def read(data: bytes, at: int) -> tuple[Event, int]:
        body = io.BytesIO(data)
        body.seek(at)
        try:
            event: Any = fastavro.schemaless_reader(body, writer, reader)
        except Exception as error:  # noqa: BLE001 - as above; it reports a mismatch of schemas only here
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return event, body.tell()

    return read


class _Inspection:
    """Refuses a schema that contains itself, is very deep, or has arrays whose items take no bytes."""

    def __init__(self) -> None:
        self._declared: dict[str, Any] = {}

    def look_at(self, kind: Any, around: frozenset[str] = frozenset(), depth: int = 0) -> None:
        """``around``: names of the types that ``kind`` is inside of."""
        if depth > _DEEPEST:
            raise UnknownSchema(f"a schema of more than {_DEEPEST} levels")
        if isinstance(kind, list):
            for branch in kind:
                self.look_at(branch, around, depth + 1)
        elif isinstance(kind, str):
            if _short(kind) in around:
                raise UnknownSchema(f"a schema that contains itself ({kind})")
        elif isinstance(kind, dict):
            if "name" in kind:
                self._declared[_short(kind["name"])] = kind
                around = around | {_short(kind["name"])}
            inner = [kind[name] for name in ("items", "values") if name in kind]
            inner += [field.get("type") for field in kind.get("fields") or () if isinstance(field, dict)]
            if isinstance(kind.get("type"), dict | list):
                inner.append(kind["type"])
            for part in inner:
                self.look_at(part, around, depth + 1)
            if "items" in kind and self._may_be_empty(kind["items"]):
                raise UnknownSchema("a schema with an array whose items take no bytes")

    def _may_be_empty(self, kind: Any) -> bool:
        """Whether a value of ``kind``, which has been looked at, can take no bytes."""
        if isinstance(kind, str):
            return kind == "null" or self._may_be_empty(self._declared.get(_short(kind)))
        if not isinstance(kind, dict):
            return False
        if kind.get("type") == "fixed":
            return not kind.get("size")
        if kind.get("type") == "record":
            return all(self._may_be_empty(field["type"]) for field in kind["fields"])
        return isinstance(kind.get("type"), dict) and self._may_be_empty(kind["type"])


def _short(name: Any) -> str:
    return str(name).rpartition(".")[2]
