"""Text and JSON of strangers in a form that can be stored, so that a span is written whatever an upstream sends."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson


class Unreadable(ValueError):
    """Bytes that no parser reads as JSON."""


def loads(data: bytes) -> Any:
    """Parse as leniently as can be: NaN and infinities, which some servers send for logprobs, lone surrogates (half
    of a character that was cut), numbers beyond 64 bits. Raises Unreadable, also for what is nested too deep."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Unreadable("not JSON, or nested too deep") from None


def dumps(value: Any, raw: bytes | None = None) -> str | None:
    """Compact JSON text of what ``loads`` gave. A lone surrogate stays as its escape, a number that is not finite
    becomes null. What is nested too deep is ``raw``, the bytes it was read from, as text."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # a lone surrogate, an integer beyond 64 bits, or more than 254 levels
        try:
            return json.dumps(_finite(value), separators=(",", ":"))
        except RecursionError:
            return None if raw is None else raw.decode("utf-8", "replace")


def within(value: Any, levels: int) -> bool:
    """Whether nothing in ``value`` is nested deeper than ``levels``."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return items is None or (levels > 0 and all(within(item, levels - 1) for item in items))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
