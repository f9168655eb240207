"""JSON text in and out: strict (no NaN, valid UTF-8), bounded in depth, compact."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orjson

MAX_DEPTH = 100


class BadJson(ValueError):
    """Text that is not JSON, or nested too deep. The message says where."""


def loads(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse, or raise BadJson naming line and column, or the depth."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadJson(f"not JSON: {error}") from None
    if _may_be_deeper(data, max_depth) and _depth(value) > max_depth:
        raise BadJson(f"nested deeper than {max_depth} levels")
    return value


def dumps(value: Any) -> str:
    """Compact text. Dataclasses and pydantic models become objects; TypeError names what has no JSON form,
    ValueError says that a number is not finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _may_be_deeper(data: bytes | str, max_depth: int) -> bool:
    # counting brackets is a few microseconds and nearly always spares the walk
    if isinstance(data, str):
        return data.count("[") + data.count("{") > max_depth
    return data.count(b"[") + data.count(b"{") > max_depth


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            # the last level holds scalars or empty containers; a container counts as a level itself
            return deepest + any(isinstance(item, dict | list) for item in level)
        deepest, level = deepest + 1, deeper
    return deepest
