"""How much of unanswered requests the broker holds, of all connections together: Kafka's queued.max.request.bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Reader(Protocol):
    """Who is told to go on reading."""

    def resume_reading(self) -> None: ...


class RequestMemory:
    """Lets connections read while less than `limit` bytes are held.

    Above the limit they wait, in the order in which they asked, except for one: it may finish its request, so that
    half-read requests cannot lock each other out for ever. So at most `limit`, one request and one read are held.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held_bytes = 0
        self._exempt: Reader | None = None
        self._waiting: OrderedDict[Reader, None] = OrderedDict()

    def admits(self, reader: Reader, *, at_any_rate: bool) -> bool:
        """Whether `reader` may read now; if not, its resume_reading() is called when it may.

        `at_any_rate`: it can be the one that reads beyond the limit, as nothing keeps it from working on what comes.
        """
        if self.held_bytes < self.limit or reader is self._exempt:
            return True
        if self._exempt is None and at_any_rate:
            self._exempt = reader
            return True
        self._waiting[reader] = None
        return False

    def hold(self, change_bytes: int) -> None:
        """Account for bytes that are held from now on, or with a negative number no more."""
        self.held_bytes += change_bytes
        if change_bytes < 0 and self._waiting and self.held_bytes < self.limit:
            self._wake()

    def done(self, reader: Reader) -> None:
        """`reader` has finished the request it was reading, or is gone."""
        self._waiting.pop(reader, None)
        if reader is self._exempt:
            self._exempt = None
            if self._waiting:
                self._wake()

    def _wake(self) -> None:
        """The first in the queue reads on; each that ends wakes the next."""
        if self.held_bytes < self.limit:
            waiting, self._waiting = self._waiting, OrderedDict()
            for reader in waiting:
                reader.resume_reading()
        elif self._exempt is None:
            reader, _ = self._waiting.popitem(last=False)
            reader.resume_reading()

    @property
    def waiting(self) -> int:
        """Connections that are not read from for want of room."""
        return len(self._waiting)
