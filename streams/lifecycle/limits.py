"""What the limits of a rollout may be: one check for requests and updates. Pure.

A double on the wire may be no number at all, and JSON, the form of the lifecycle's changelog, has no word for that.
So nothing is kept that would come back from there as something else, or that does not fit the events made of it.
"""

from __future__ import annotations

import math
from typing import Any

LONGEST_SECONDS = 1e12
"""Thirty thousand years. In microseconds, and after any date that an event may have, it fits 64 bits."""
LATEST_US = 253_402_300_799_999_999
"""The end of the year 9999; times of events are from 1 to here."""
_LARGEST_INT = 2**31 - 1

NO_LIMITS: dict[str, Any] = {
    "timeout_seconds": None,
    "unresponsive_seconds": None,
    "max_attempts": 1,
    "retry_condition": [],
    "backoff_seconds": 0.0,
}
"""The schema's defaults."""


def is_time(at_us: int) -> bool:
    """Whether these microseconds since the epoch are the time of an event: 0 says that none was given, and what is
    beyond the calendar was written in another unit. Taken at its word it would be later than all that ever follows."""
    return 0 < at_us <= LATEST_US


def problem_of_limits(config: dict[str, Any]) -> str:
    """The first of these fields of a RolloutConfig that cannot be what it is, with its value; empty: none."""
    for name, value in config.items():
        if not _is_possible(name, value):
            return f"config.{name} cannot be {value!r:.200}"
    return ""


def possible_limits(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with the schema's default in place of what cannot be."""
    return {name: value if _is_possible(name, value) else NO_LIMITS[name] for name, value in config.items()}


def _is_possible(name: str, value: Any) -> bool:
    if name in ("timeout_seconds", "unresponsive_seconds"):
        return value is None or (_is_seconds(value) and value > 0)
    if name == "backoff_seconds":
        return _is_seconds(value)
    if name == "max_attempts":
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST_INT
    if name == "retry_condition":
        return isinstance(value, list) and all(isinstance(word, str) for word in value)
    return False


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= LONGEST_SECONDS
