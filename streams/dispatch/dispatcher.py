"""The dispatcher: from an offer to a partition."""

from __future__ import annotations

from typing import Protocol

from agl_stream.schemas.events import Event


class Dispatcher(Protocol):
    """Chooses where an attempt is offered. Called once per attempt and delivery: the choice is kept with the
    attempt, so that an offer made again after a crash goes where the first went."""

    def choose(self, offer: Event) -> int:
        """Partition for an AttemptDispatched."""
        ...


class RoundRobin:
    """Each partition in turn. Even over any number of offers, blind to who is busy."""

    def __init__(self, partitions: int, *, start: int = 0) -> None:
        """``start``: the partition after which the first offer goes, so that restarts do not favour partition 0."""
        self._partitions = partitions
        self._last = start

    def choose(self, offer: Event) -> int:
        self._last = (self._last + 1) % self._partitions
        return self._last
