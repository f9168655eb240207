"""Objects: a value as it is, with its type's name."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from agl_stream.producers import json_text, semconv
from agl_stream.producers.attributes import Attribute
from agl_stream.producers.emitters.emit import emit, point
from agl_stream.schemas.events import Event


def emit_object(value: Any, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> Event:
    """Emit an object span: str, int, float and bool as a literal, bytes as base64, all else as JSON.

    Raises TypeError when the value has no JSON form, ValueError when a number in it is not finite.
    """
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    own: dict[str, Attribute] = {semconv.OBJECT_TYPE: name}
    if isinstance(value, str | bool | int | float):
        own[semconv.OBJECT_LITERAL] = value
    elif isinstance(value, bytes | bytearray):
        own[semconv.OBJECT_LITERAL] = base64.b64encode(value).decode()
    else:
        own[semconv.OBJECT_JSON] = json_text.dumps(value)
    return emit(point(semconv.SPAN_OBJECT, "object", own, attributes), propagate=propagate)
