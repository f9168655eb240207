"""When a dead process is started again, and when that is given up: a pure decision over death times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Restart with doubling delays; give up after `max_deaths` deaths within `window_seconds`."""

    max_deaths: int = 5
    window_seconds: float = 60.0
    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 5.0

    def delay_seconds(self, death_times: Sequence[float]) -> float | None:
        """Seconds to wait before the next start; None: give up.

        `death_times` are the deaths so far in ascending order, the newest last, on any one monotonic
        clock. The first delay is short because a crash of a healthy process should cost little; the
        doubling keeps a process that dies at start from burning a core.
        """
        newest = death_times[-1]
        recent = sum(1 for died_at in death_times if newest - died_at < self.window_seconds)
        if recent >= self.max_deaths:
            return None
        return min(self.first_delay_seconds * 2 ** (recent - 1), self.max_delay_seconds)
