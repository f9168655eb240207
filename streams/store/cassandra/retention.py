"""How long spans stay, as tables have it: a time to live for all rows, and windows that expire as a whole. Pure.

The time to live counts from the moment a row is written, not from the span's own time: a store that is rebuilt from
the log keeps every span for the full time again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_DAY_SECONDS = 86_400
_WINDOWS = 24
"""Spans of this many windows lie on disk at a time; fewer would expire late, more would be many small files."""
_LONGEST_SECONDS = 20 * 365 * _DAY_SECONDS
_COMPACTION = "TimeWindowCompactionStrategy"

RETAINED = ("spans", "span_buckets", "activity")


@dataclass(frozen=True)
class TableRetention:
    """What a table of spans is set to. ``window``: size and unit of its compaction windows, None where it has none."""

    seconds: int
    window: tuple[int, str] | None = None

    def alteration(self, table: str) -> str:
        """The statement that sets it."""
        options = [f"default_time_to_live = {self.seconds}"]
        if self.window is not None:
            options.append(
                f"compaction = {{'class': '{_COMPACTION}', 'compaction_window_size': '{self.window[0]}', "
                f"'compaction_window_unit': '{self.window[1]}'}}"
            )
        return f"ALTER TABLE {table} WITH {' AND '.join(options)}"


def wanted_retention(table: str, days: float) -> TableRetention:
    """For a setting of so many days (0: for ever). What leads to spans outlives them, or they could not be found."""
    seconds = min(int(days * _DAY_SECONDS), _LONGEST_SECONDS)
    if table != "spans":
        return TableRetention(min(2 * seconds, _LONGEST_SECONDS))
    return TableRetention(seconds, _window(seconds or 7 * _WINDOWS * _DAY_SECONDS))


def found_retention(seconds: int, compaction: Mapping[str, str]) -> TableRetention:
    """As the database tells it."""
    if not compaction.get("class", "").endswith(_COMPACTION):
        return TableRetention(seconds)
    size, unit = compaction.get("compaction_window_size", "1"), compaction.get("compaction_window_unit", "DAYS")
    return TableRetention(seconds, (int(size), unit))


def _window(seconds: int) -> tuple[int, str]:
    for unit, length in (("DAYS", _DAY_SECONDS), ("HOURS", 3600)):
        if seconds >= _WINDOWS * length:
            return seconds // (_WINDOWS * length), unit
    return max(seconds // (_WINDOWS * 60), 1), "MINUTES"
