"""The state store: ``open_store`` and the port (``StateStore``, ``Query``, ``Condition``, ``Page``)."""

from __future__ import annotations

import time

from agl_stream.errors import EngineUnreachable
from agl_stream.settings import Settings
from agl_stream.streams.store.address import is_cassandra, sqlite_path
from agl_stream.streams.store.port import (
    Condition,
    Page,
    Query,
    StateReader,
    StateStore,
    StateWriter,
    latest_attempt,
)

__all__ = [
    "Condition",
    "Page",
    "Query",
    "StateReader",
    "StateStore",
    "StateWriter",
    "latest_attempt",
    "open_store",
    "wait_applied",
]


def open_store(settings: Settings, *, read_only: bool = True) -> StateStore:
    """The state store of the settings. Read-only, nothing is created: an embedded store that is not there yet is empty.

    Raises SettingError for a ``store_url`` that is neither empty nor sqlite:///path nor cassandra://..., or of a store
    that is not of this version's layout (``agl-stream store apply`` makes a Cassandra keyspace so); EngineUnreachable
    when the database does not answer.
    """
    if is_cassandra(settings):
        from agl_stream.streams.store.cassandra.address import parse_address
        from agl_stream.streams.store.cassandra.store import CassandraStore

        address = parse_address(settings.store_url, copies=settings.replication_factor)
        return CassandraStore(settings, address, read_only=read_only)
    from agl_stream.streams.store.sqlite import SqliteStore

    return SqliteStore(sqlite_path(settings), namespace=settings.namespace, read_only=read_only)


def wait_applied(store: StateReader, topic: str, partition: int, offset: int, *, timeout_seconds: float = 10.0) -> None:
    """Block until the record at ``offset`` can be read from the store, so that a writer sees its own write.

    Raises EngineUnreachable when that takes longer than ``timeout_seconds``.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = 0.002
    while (applied := store.applied_offset(topic, partition) or 0) <= offset:
        if time.monotonic() > deadline:
            raise EngineUnreachable(
                f"offset {offset} of {topic} partition {partition} is not in the state store after "
                f"{timeout_seconds:g} s (it stands at {applied}); is the sink running? See `agl-stream status`"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
