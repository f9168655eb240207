"""What has to come next from each input partition: finds records that were read and never arrived. Pure.

Faust clears its queues when the flow resumes after a rebalance. Records that were in them have been read as far as
the consumer knows, so they do not come again, and the next one would be committed past them. Here every partition
has an expected offset: what comes before it has been handled, what comes after it means that something is missing
(or that the log itself has a gap, which the log can tell).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from agl_stream.streams.group_offsets import Place


class Placed(Protocol):
    """A consumed message, as far as it matters here."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


M = TypeVar("M", bound=Placed)


class Positions:
    """Expected offsets of the partitions that are ours."""

    def __init__(self) -> None:
        self._expected: dict[Place, int] = {}
        self._rewinding: set[Place] = set()

    def start(self, expected: Mapping[Place, int]) -> None:
        """These partitions are ours from now on, each to be read from the offset given."""
        self._expected = dict(expected)
        self._rewinding.clear()

    @property
    def expected(self) -> dict[Place, int]:
        return dict(self._expected)

    def admit(self, messages: Iterable[M]) -> tuple[list[M], dict[Place, int]]:
        """The messages to handle, in order, and for each partition with something missing the offset of what came
        too early. Messages that were handled before, come too early or belong to others are left out."""
        admitted: list[M] = []
        early: dict[Place, int] = {}
        for message in messages:
            place = (message.topic, message.partition)
            expected = self._expected.get(place)
            if expected is None or message.offset < expected or place in early:
                continue
            if message.offset > expected:
                if place not in self._rewinding:
                    early[place] = message.offset
                continue
            self._expected[place] = expected + 1
            self._rewinding.discard(place)
            admitted.append(message)
        return admitted, early

    def skip_to(self, place: Place, offset: int) -> None:
        """The log has nothing before ``offset``: that is what comes next."""
        if place in self._expected:
            self._expected[place] = max(self._expected[place], offset)

    def rewinding(self, place: Place) -> None:
        """The consumer has been sent back to the expected offset; what it had read ahead is still to arrive and is
        left out without a word."""
        if place in self._expected:
            self._rewinding.add(place)
