"""How far each partition of the log is applied. Written after the rows that it covers, so that who sees the offset
sees the rows.

The timestamp is the offset itself above a base, so that a mark never goes down: neither by records that are applied
again, nor by a process that lost its partition and has not noticed. ``restart`` raises the base to the present time,
above everything that was written so far, and with it the timestamps of rollouts and triplets of the new topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from agl_stream.schemas.clock import now_us
from agl_stream.streams.store.cassandra import statements
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.requests import Writes, read

_PART = 0
_FORGOTTEN = -1

Place = tuple[str, int]


class Applied:
    """The marks in the database, and the bases that this process has seen. Not thread-safe but for reading."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bases: dict[Place, int] = {}

    def all(self) -> dict[Place, int]:
        found: dict[Place, int] = {}
        for topic, partition, base, next_offset in read(self._connection, statements.ALL_APPLIED, _PART):
            self._bases[topic, partition] = base
            if next_offset != _FORGOTTEN:
                found[topic, partition] = next_offset
        return found

    def one(self, place: Place) -> int | None:
        found = read(self._connection, statements.GET_APPLIED, _PART, *place)
        return found[0][1] if found and found[0][1] != _FORGOTTEN else None

    def base(self, place: Place) -> int:
        """Where the timestamps of this generation of the topic begin."""
        known = self._bases.get(place)
        if known is None:
            found = read(self._connection, statements.GET_APPLIED, _PART, *place)
            known = self._bases[place] = found[0][0] if found else 0
        return known

    def note(self, positions: Mapping[Place, int]) -> None:
        """What lies before these offsets is in the database."""
        writes = Writes()
        for place, next_offset in positions.items():
            base = self.base(place)
            writes.add(statements.PUT_APPLIED, 1, (_PART, *place, base, next_offset, base + next_offset + 1))
        writes.carry_out(self._connection)

    def restart(self, place: Place) -> None:
        found = read(self._connection, statements.GET_APPLIED, _PART, *place)
        base = now_us()
        for old, next_offset in found:
            base = max(base, old + next_offset + 2)
        writes = Writes()
        writes.add(statements.PUT_APPLIED, 1, (_PART, *place, base, _FORGOTTEN, base))
        writes.carry_out(self._connection)
        self._bases[place] = base
