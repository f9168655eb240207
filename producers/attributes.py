"""Span attributes: nested values to dotted keys, tags and links, and what an exception says of itself."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from agl_stream.producers import json_text, semconv

Primitive: TypeAlias = str | bool | int | float
Attribute: TypeAlias = Primitive | list[Primitive]
_PRIMITIVES = (str, bool, int, float)
LONGEST_TEXT = 10_000
_LONGEST_STACK = 50_000


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


def flatten_any(key: str, value: Any, *, longest: int = LONGEST_TEXT) -> dict[str, Attribute]:
    """As ``flatten`` for one value of any type: what has no JSON form becomes its ``repr``, cut at ``longest``.

    For arguments and results of other people's functions, which must never make their call fail.
    """
    flat: dict[str, Attribute] = {}
    try:
        _flatten_into(flat, key, json_text.loads(json_text.dumps(value)))
    except (TypeError, ValueError, RecursionError):
        flat = {key: _safe_repr(value, longest)}
    return flat


def utf8(text: str) -> str:
    """The text with a question mark for each lone surrogate, which no event field and no header can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def safe_text(value: object, *, longest: int = LONGEST_TEXT) -> str:
    """``str(value)`` of anything: never raises, has a UTF-8 form (what has none is escaped), is cut at ``longest``
    characters before escaping."""
    return _safely(str, value, longest)


def _safe_repr(value: object, longest: int) -> str:
    return _safely(repr, value, longest)


def _safely(render: Callable[[object], str], value: object, longest: int) -> str:
    try:
        text = render(value)
    except BaseException as error:  # noqa: BLE001 - a foreign __str__ or __repr__ may raise anything, even SystemExit
        text = f"<{type(value).__name__}, whose {render.__name__} raises {type(error).__name__}>"
    # by the methods of str itself: what came may be a subclass with methods of its own
    return str.encode(str.__getitem__(text, slice(longest)), "utf-8", "backslashreplace").decode()


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
    """OpenTelemetry's attributes of an exception, with the stack trace of the agent's own code.

    Never raises, whatever the exception's own methods do; long texts are cut, a stack in its middle.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        semconv.EXCEPTION_TYPE: safe_text(name),
        semconv.EXCEPTION_MESSAGE: safe_text(error),
        semconv.EXCEPTION_STACKTRACE: _stack_of(error),
        semconv.EXCEPTION_ESCAPED: escaped,
    }


def _stack_of(error: BaseException) -> str:
    try:
        stack = "".join(traceback.format_exception(error))
    except Exception as failure:  # noqa: BLE001 - formatting asks the exception's own notes, causes and line numbers
        stack = f"the stack trace cannot be formatted ({type(failure).__name__})"
    if len(stack) > _LONGEST_STACK:
        # the agent's frames come first, the place that raised last
        stack = f"{stack[: _LONGEST_STACK // 2]}\n[...]\n{stack[-_LONGEST_STACK // 2 :]}"
    return safe_text(stack, longest=len(stack))
