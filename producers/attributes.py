"""Span attributes: nested values to dotted keys, tags and links, and what an exception says of itself."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from agl_stream.producers import json_text, semconv

Primitive: TypeAlias = str | bool | int | float
Attribute: TypeAlias = Primitive | list[Primitive]
_PRIMITIVES = (str, bool, int, float)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Attribute]:
    """Dotted keys and primitive values; a list of primitives stays whole, None and empty containers vanish.

    Raises TypeError for a key that is no string and for a value that is neither primitive nor container.
    """
    flat: dict[str, Attribute] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise TypeError(f"attribute key {key!r} below {prefix or 'the top'} is no string")
        _flatten_into(flat, f"{prefix}.{key}" if prefix else key, value)
    return flat


def _flatten_into(flat: dict[str, Attribute], key: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such number; a loss that diverged is still worth reading
        flat[key] = str(value)
    elif isinstance(value, _PRIMITIVES):
        flat[key] = value
    elif isinstance(value, Mapping):
        flat.update(flatten(value, key))
    elif isinstance(value, list | tuple):
        if value and all(isinstance(item, _PRIMITIVES) for item in value):
            flat[key] = [str(item) if isinstance(item, float) and not math.isfinite(item) else item for item in value]
        else:
            for index, item in enumerate(value):
                _flatten_into(flat, f"{key}.{index}", item)
    elif value is not None:
        raise TypeError(
            f"attribute {key} is a {type(value).__name__}; str, bool, int, float and containers are possible"
        )


def flatten_any(key: str, value: Any, *, longest: int = 10_000) -> dict[str, Attribute]:
    """As ``flatten`` for one value of any type: what has no JSON form becomes its ``repr``, cut at ``longest``.

    For arguments and results of other people's functions, which must never make their call fail.
    """
    flat: dict[str, Attribute] = {}
    try:
        _flatten_into(flat, key, json_text.loads(json_text.dumps(value)))
    except (TypeError, ValueError, RecursionError):
        flat = {key: _safe_repr(value)[:longest]}
    return flat


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 a foreign __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def tags(names: Iterable[str]) -> dict[str, Attribute]:
    """Attributes that tag a span."""
    return {f"{semconv.TAG}.{index}": name for index, name in enumerate(names)}


def links(matches: Mapping[str, Primitive]) -> dict[str, Attribute]:
    """Attributes that link a span to all spans whose attributes match every pair; the keys ``trace_id`` and
    ``span_id`` mean the span's own ids. The other span may be written later."""
    flat: dict[str, Attribute] = {}
    for index, (key, value) in enumerate(matches.items()):
        flat[f"{semconv.LINK}.{index}.key_match"] = key
        flat[f"{semconv.LINK}.{index}.value_match"] = str(value)
    return flat


def of_exception(error: BaseException, *, escaped: bool) -> dict[str, Attribute]:
    """OpenTelemetry's attributes of an exception, with the stack trace of the agent's own code."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        semconv.EXCEPTION_TYPE: name,
        semconv.EXCEPTION_MESSAGE: str(error),
        semconv.EXCEPTION_STACKTRACE: "".join(traceback.format_exception(error)),
        semconv.EXCEPTION_ESCAPED: escaped,
    }
