"""Notices a consumer that is alive and does nothing: work waits, and no offset moves.

Judged against lag, never against silence: a quiet topic is no fault. The questions go over a connection of their own,
since the consumer under suspicion cannot be asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from agl_stream.errors import AglStreamError, EngineUnreachable
from agl_stream.settings import Settings
from agl_stream.streams.group_offsets import GroupOffsets, Place

logger = logging.getLogger(__name__)

_LOOKS_PER_STALL = 6


class StallGuard:
    """Looks at a group's committed offsets a few times per ``stall_seconds``."""

    def __init__(
        self, settings: Settings, group: str, offsets: GroupOffsets, owned: Callable[[], Iterable[Place]]
    ) -> None:
        """``owned``: what this process is responsible for at the moment."""
        self._settings = settings
        self._group = group
        self._offsets = offsets
        self._owned = owned
        self._committed: dict[Place, int] = {}
        self._moved_at = time.monotonic()
        self._next_look = 0.0

    def look(self) -> None:
        """Raise AglStreamError when nothing has moved for ``stall_seconds`` although records wait. Blocks for a few
        round trips, at most some seconds; a broker that does not answer says nothing about this process."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._settings.stall_seconds / _LOOKS_PER_STALL
        try:
            found = self._offsets.ask(self._owned())
        except EngineUnreachable as error:
            logger.info("whether %s stands still is not known: %s", self._group, error)
            self._moved_at = now
            return
        committed = {place: offset for place, (offset, _) in found.items()}
        lag = sum(max(end - offset, 0) for offset, end in found.values())
        if not lag or committed != self._committed:
            self._committed, self._moved_at = committed, now
        elif now - self._moved_at > self._settings.stall_seconds:
            raise AglStreamError(
                f"{self._group} stands still: {lag} records wait in its partitions and no offset has moved for "
                f"AGL_STREAM_STALL_SECONDS={self._settings.stall_seconds:g}"
            )
