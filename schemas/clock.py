"""Time: the wall clock in microseconds, and a hybrid logical clock for order across processes.

The hybrid clock follows Kulkarni et al., "Logical Physical Clocks" (2014): 48 bits of milliseconds above 16 bits
of counter in one signed 64-bit integer, so that values sort as time does and a cause sorts before its effect
whenever the effect's process has seen the cause (``witness``).
"""

from __future__ import annotations

import threading
import time

_COUNTER_BITS = 16
_COUNTER_LIMIT = 1 << _COUNTER_BITS


def now_us() -> int:
    """Microseconds since the Unix epoch, UTC."""
    return time.time_ns() // 1000


class HybridClock:
    """Thread-safe; each ``tick`` is greater than every earlier tick and every value witnessed before it."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def tick(self) -> int:
        """The next value."""
        physical = (time.time_ns() // 1_000_000) << _COUNTER_BITS
        with self._lock:
            self._last = max(physical, self._last + 1)
            return self._last

    def witness(self, value: int) -> None:
        """Take note of another process's value. One beyond a day ahead of this clock is ignored: a sick clock
        must not drag the healthy ones along."""
        bound = ((time.time_ns() // 1_000_000) + 86_400_000) << _COUNTER_BITS
        if value < bound:
            with self._lock:
                self._last = max(self._last, value)


def wall_ms(value: int) -> int:
    """Milliseconds since the epoch of a hybrid clock value."""
    return value // _COUNTER_LIMIT
