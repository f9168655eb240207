"""Keyspaces for tests: each has one of its own on the node that a session shares."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agl_stream.settings import Settings
from agl_stream.streams.store.cassandra.address import Address, parse_address
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.layout import drop_keyspace


@contextmanager
def fresh_keyspace(contact_points: str, **given: Any) -> Iterator[Settings]:
    """Settings of a keyspace that is not there yet; dropped afterwards."""
    url = f"cassandra://{contact_points}/t{uuid.uuid4().hex[:10]}"
    settings = Settings(**{"store_url": url, **given})
    try:
        yield settings
    finally:
        drop_keyspace(settings, address_of(settings))


def address_of(settings: Settings) -> Address:
    return parse_address(settings.store_url, copies=settings.replication_factor)


@contextmanager
def cql(settings: Settings) -> Iterator[Any]:
    """A session in the keyspace."""
    connection = Connection(settings, address_of(settings))
    try:
        yield connection.session
    finally:
        connection.close()
