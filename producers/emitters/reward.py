"""Rewards: a number, or several named dimensions of which one counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agl_stream.producers import semconv
from agl_stream.producers.attributes import Attribute
from agl_stream.producers.emitters.emit import emit, point
from agl_stream.schemas.events import Event

PRIMARY = "primary"


def emit_reward(
    value: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> Event:
    """Emit a reward span.

    A number (or bool) is one dimension named ``primary``. A mapping of numbers needs ``primary_key``, the dimension
    that trains; the others are kept beside it. Raises TypeError for anything else, ValueError for a missing
    ``primary_key``, a dimension that is no number, or a number that is not finite.
    """
    return emit(reward_fields(value, primary_key=primary_key, attributes=attributes), propagate=propagate)


def reward_fields(
    value: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Event:
    """The fields of a reward span: ``reward`` holds the primary dimension, the attributes hold all, primary first."""
    dimensions = _dimensions(value, primary_key)
    own: dict[str, Attribute] = {}
    for index, (name, number) in enumerate(dimensions.items()):
        own[f"{semconv.REWARD}.{index}.name"] = name
        own[f"{semconv.REWARD}.{index}.value"] = number
    primary = next(iter(dimensions.values()))
    return point(semconv.SPAN_REWARD, "reward", own, attributes, reward=primary)


def _dimensions(value: Any, primary_key: str | None) -> dict[str, float]:
    if isinstance(value, Mapping):
        if primary_key is None or primary_key not in value:
            raise ValueError(
                f"a reward of several dimensions needs primary_key, one of {', '.join(map(str, value)) or 'none given'}"
            )
        ordered = {primary_key: value[primary_key], **value}
        return {
            str(name): _number(f"reward dimension {name!r}", number, ValueError) for name, number in ordered.items()
        }
    return {PRIMARY: _number("a reward", value, TypeError)}


def _number(what: str, value: Any, wrong_type: type[Exception]) -> float:
    if not isinstance(value, int | float) and not hasattr(value, "__float__"):
        raise wrong_type(f"{what} must be a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, not {number}")
    return number
