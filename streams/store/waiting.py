"""A store that is away is waited for: whoever reads or writes it goes on where it was once it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from agl_stream.errors import EngineUnreachable

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 5.0


class Stopped(Exception):
    """The caller was told to stop before the store answered."""


def until_it_answers(ask: Callable[[], _T], stop: threading.Event, who: str) -> _T:
    """What ``ask`` returns, which is called again as long as it raises EngineUnreachable; ``who`` is named in the
    warning of each failure. Blocks; raises Stopped once ``stop`` is set."""
    pause = _FIRST_SECONDS
    while not stop.is_set():
        try:
            return ask()
        except EngineUnreachable as error:
            logger.warning("%s: %s; trying again in %.1f s", who, error, pause)
            stop.wait(pause)
            pause = min(pause * 2, _LONGEST_SECONDS)
    raise Stopped
