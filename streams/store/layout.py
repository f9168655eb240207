"""Bringing a state store to this version's layout, whichever database it is in."""

from __future__ import annotations

from agl_stream.settings import Settings
from agl_stream.streams.store.address import is_cassandra, sqlite_path
from agl_stream.streams.store.change import Change


def plan_store(settings: Settings) -> list[Change]:
    """What ``apply_store`` would do. Changes nothing. Raises EngineUnreachable when the database does not answer."""
    if is_cassandra(settings):
        from agl_stream.streams.store.cassandra.address import parse_address
        from agl_stream.streams.store.cassandra.layout import plan_layout

        return plan_layout(settings, parse_address(settings.store_url, copies=settings.replication_factor))
    from agl_stream.streams.store.sqlite_connections import plan_layout as plan_file

    return plan_file(sqlite_path(settings))


def apply_store(settings: Settings) -> list[Change]:
    """Create what is missing and return what was done; doing it again changes nothing.

    Raises AglStreamError, before anything is changed, when something is refused; EngineUnreachable when the database
    does not answer.
    """
    if is_cassandra(settings):
        from agl_stream.streams.store.cassandra.address import parse_address
        from agl_stream.streams.store.cassandra.layout import apply_layout

        return apply_layout(settings, parse_address(settings.store_url, copies=settings.replication_factor))
    from agl_stream.streams.store.sqlite import SqliteStore

    changes = plan_store(settings)
    # a writer brings the file to its layout as it opens it
    SqliteStore(sqlite_path(settings), namespace=settings.namespace).close()
    return changes
