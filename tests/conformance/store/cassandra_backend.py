"""Apache Cassandra under the cases: one keyspace for all of them, emptied in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agl_stream.settings import Settings
from agl_stream.streams.store.cassandra.address import parse_address
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.layout import apply_layout
from tests.conformance.store.backends import Backend, Capabilities

KEYSPACE = "conformance"
_BOOKKEEPING = {"layout", "layout_lock", "facts"}
_ROWS = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"


@contextmanager
def cassandra_backend(name: str, contact_points: str, copies: int) -> Iterator[Backend]:
    """The store on the nodes at ``contact_points``, with ``copies`` of every row."""
    settings = Settings(store_url=f"cassandra://{contact_points}/{KEYSPACE}", replication_factor=copies)
    address = parse_address(settings.store_url, copies=copies)
    apply_layout(settings, address)
    connection = Connection(settings, address)
    # without a commit log there is nothing to be flushed before a table is emptied
    connection.session.execute(f"ALTER KEYSPACE {KEYSPACE} WITH durable_writes = false")
    tables = [table for (table,) in connection.session.execute(_ROWS, (KEYSPACE,)) if table not in _BOOKKEEPING]

    def make_settings() -> Settings:
        # truncating takes long, and most cases write to few tables
        looks = [connection.session.execute_async(f"SELECT * FROM {table} LIMIT 1") for table in tables]
        used = [table for table, look in zip(tables, looks, strict=True) if look.result().one()]
        for truncated in [connection.session.execute_async(f"TRUNCATE {table}") for table in used]:
            truncated.result()
        return settings

    try:
        yield Backend(name, Capabilities(atomic_apply=False, reads_before_creation=False), make_settings, examples=3)
    finally:
        connection.close()
