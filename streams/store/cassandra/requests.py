"""Many requests at once, never more than a set number: the back-pressure between a materialiser and the database."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agl_stream.errors import EngineUnreachable
from agl_stream.streams.store.cassandra.connection import REQUEST_SECONDS, Connection, explain, is_busy
from agl_stream.streams.store.cassandra.driver import BatchStatement, BatchType, BoundStatement, ResponseFuture

WRITES_AT_ONCE = 48
READS_AT_ONCE = 32
BATCH_ROWS = 100
BATCH_BYTES = 200_000
PAGE_ROWS = 1000
_BUSY_SECONDS = 0.02

Partition = tuple[Any, ...]

_PACK: dict[str, Callable[[Any], bytes]] = {
    "text": str.encode,
    "varchar": str.encode,
    "bigint": struct.Struct(">q").pack,
    "int": struct.Struct(">i").pack,
    "blob": bytes,
}
"""Types of the native protocol, as far as tables here have them."""


class Writes:
    """Rows to write, gathered by partition: rows of one partition travel together, those of different ones never do
    (a batch over partitions makes one node work for all the others)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Partition], list[tuple[Any, ...]]] = {}

    def add(self, statement: str, keys: int, row: tuple[Any, ...]) -> None:
        """``keys``: how many of the row's leading values are its partition key. The last value is the timestamp."""
        self._rows.setdefault((statement, row[:keys]), []).append(row)

    def extend(self, statement: str, partition: Partition, rows: list[tuple[Any, ...]]) -> None:
        """Rows that are known to be of one partition."""
        self._rows.setdefault((statement, partition), []).extend(rows)

    def carry_out(self, connection: Connection) -> None:
        """Write everything; returns when every row is acknowledged. Raises the first error once nothing is under way
        any more; what was written until then stays, and writing it again changes nothing."""
        flight = _Flight(connection)
        try:
            for (statement, _), rows in self._rows.items():
                bind = _Binder(connection.prepared(statement))
                for chunk in _chunks(rows):
                    if len(chunk) == 1:
                        flight.send(bind(chunk[0]))
                    else:
                        batch = BatchStatement(BatchType.UNLOGGED)
                        batch.is_idempotent = True
                        for row in chunk:
                            batch.add(bind(row))
                        flight.send(batch)
        finally:
            flight.send_refused()
        flight.check()


class _Binder:
    """Binds rows of Python values. The driver's own ``bind`` looks at each value's type anew, which costs five times
    as much: most of what a span cost."""

    def __init__(self, prepared: Any) -> None:
        self._prepared = prepared
        self._packs = [_PACK[column.type.typename] for column in prepared.column_metadata]

    def __call__(self, row: tuple[Any, ...]) -> BoundStatement:
        bound = BoundStatement(self._prepared)
        bound.values = [pack(value) for pack, value in zip(self._packs, row, strict=True)]
        return bound


class _Flight:
    """Requests under way; answers arrive on the driver's thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = connection.session
        self._at_once = WRITES_AT_ONCE
        self._room = threading.BoundedSemaphore(self._at_once)
        self._error: BaseException | None = None
        self._refused: deque[Any] = deque()

    def send(self, statement: Any) -> None:
        """Waits for room; sends nothing more once something has failed."""
        self._room.acquire()
        if self._error is not None:
            self._room.release()
            return
        try:
            with self._connection.explained():
                future = self._session.execute_async(statement)
        except BaseException:
            self._room.release()
            raise
        future.add_callbacks(self._done, self._failed, errback_args=(statement,))

    def land(self) -> None:
        """Waits until nothing is under way."""
        for _ in range(self._at_once):
            self._room.acquire()
        for _ in range(self._at_once):
            self._room.release()

    def send_refused(self) -> None:
        """What the driver did not take because the network took no more: back-pressure, and no failure."""
        deadline = time.monotonic() + REQUEST_SECONDS
        self.land()
        while self._refused and self._error is None and time.monotonic() < deadline:
            time.sleep(_BUSY_SECONDS)
            for _ in range(len(self._refused)):
                self.send(self._refused.popleft())
            self.land()

    def check(self) -> None:
        if self._error is not None:
            raise explain(self._connection.address, self._error) from self._error
        if self._refused:
            raise EngineUnreachable(
                f"the state store at {self._connection.address} has read nothing for {REQUEST_SECONDS:g} s; is it up?"
            )

    def _done(self, _: Any) -> None:
        self._room.release()

    def _failed(self, error: BaseException, statement: Any) -> None:
        if is_busy(error):
            self._refused.append(statement)
        else:
            self._error = self._error or error
        self._room.release()


def read_all(connection: Connection, asked: Iterable[tuple[str, tuple[Any, ...]]]) -> Iterator[Iterator[Any]]:
    """The rows of each question, in the order of the questions; pages are fetched as they are used."""
    session = connection.session
    under_way: deque[ResponseFuture] = deque()
    with connection.explained():
        for statement, values in asked:
            bound = connection.prepared(statement).bind(values)
            bound.fetch_size = PAGE_ROWS
            under_way.append(session.execute_async(bound))
            if len(under_way) >= READS_AT_ONCE:
                yield iter(under_way.popleft().result())
        while under_way:
            yield iter(under_way.popleft().result())


def read(connection: Connection, statement: str, *values: Any) -> list[Any]:
    """The rows of one question."""
    return [row for rows in read_all(connection, [(statement, values)]) for row in rows]


def _chunks(rows: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        # what makes a row large is the cell before its timestamp
        content = row[-2]
        length = len(content) if isinstance(content, bytes) else 40
        if chunk and (len(chunk) == BATCH_ROWS or size + length > BATCH_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += length
    if chunk:
        yield chunk
