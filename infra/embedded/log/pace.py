"""Long work in a thread that leaves the interpreter to the event loop in between."""

from __future__ import annotations

import time

_WORK_SECONDS = 0.002
_REST_SECONDS = 0.002


class Pace:
    """To be called between small pieces of work: rests half of the time, so that requests wait a few ms at most."""

    def __init__(self) -> None:
        self._rested_at = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._rested_at > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested_at = time.monotonic()
