"""The keyspace's layout: what it has, what it lacks, and making it complete.

Each migration is applied once and noted with its hash; one that was noted and differs is refused, for nobody can say
what the tables look like then. Applying is safe to repeat and safe at once with others: a lock row, the only place
with lightweight transactions, lets one go first, and every statement says IF NOT EXISTS.
"""

# ruff: noqa: S608 - names of tables are this module's own, values are always parameters

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from typing import Any

from agl_stream.errors import AglStreamError, EngineUnreachable, SettingError
from agl_stream.schemas.clock import now_us
from agl_stream.settings import Settings
from agl_stream.streams.store.cassandra.address import Address
from agl_stream.streams.store.cassandra.agreement import wait_agreement
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.migration import Migration, migrations
from agl_stream.streams.store.cassandra.retention import RETAINED, found_retention, wanted_retention
from agl_stream.streams.store.change import Change

_LOCK_SECONDS = 120
_PATIENCE_SECONDS = 150.0
_MAKING_SECONDS = 20.0
_CHANGE_SECONDS = 60.0
_REMEDY = "run `agl-stream store apply`"

_BOOKKEEPING = {
    "layout": "(part int, number int, name text, hash text, applied_at_us bigint, PRIMARY KEY (part, number))",
    "layout_lock": "(name text PRIMARY KEY, owner text)",
    "facts": "(name text PRIMARY KEY, value text)",
}

_APPLIED = "SELECT number, name, hash FROM layout WHERE part = 0"
_NOTE = "INSERT INTO layout (part, number, name, hash, applied_at_us) VALUES (0, ?, ?, ?, ?)"
_NAMESPACE = "SELECT value FROM facts WHERE name = 'namespace'"
_SET_NAMESPACE = "INSERT INTO facts (name, value) VALUES ('namespace', ?) IF NOT EXISTS"
_LOCK = f"INSERT INTO layout_lock (name, owner) VALUES ('layout', ?) IF NOT EXISTS USING TTL {_LOCK_SECONDS}"
_UNLOCK = "DELETE FROM layout_lock WHERE name = 'layout' IF owner = ?"
_TABLES = "SELECT table_name, default_time_to_live, compaction FROM system_schema.tables WHERE keyspace_name = ?"
_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"


def check_layout(connection: Connection, settings: Settings) -> None:
    """Raises SettingError, naming the remedy, when the keyspace is behind or ahead of this version or belongs to
    another namespace."""
    address = connection.address
    noted = {number: (name, found) for number, name, found in _read(connection, _APPLIED)}
    for change in _compare(noted):
        if change.action == "refuse":
            raise SettingError(f"the state store at {address} cannot be used: {change.thing}: {change.detail}")
    if missing := [migration.name for migration in migrations() if migration.number not in noted]:
        raise SettingError(f"the state store at {address} lacks {', '.join(missing)}; {_REMEDY}")
    for (namespace,) in _read(connection, _NAMESPACE):
        if namespace != settings.namespace:
            raise SettingError(
                f"the state store at {address} belongs to namespace {namespace!r}, not {settings.namespace!r}; set "
                "AGL_STREAM_NAMESPACE or AGL_STREAM_STORE_URL"
            )


def plan_layout(settings: Settings, address: Address) -> list[Change]:
    """What ``apply_layout`` would do. Changes nothing. Raises EngineUnreachable when no node answers."""
    connection = Connection(settings, address, keyspace=False)
    try:
        return _plan(connection, settings)
    finally:
        connection.close()


def apply_layout(settings: Settings, address: Address) -> list[Change]:
    """Make the keyspace complete and return what was done; doing it again changes nothing. Returns when all nodes
    have the same schema.

    Raises AglStreamError, before anything is changed, when something is refused; EngineUnreachable when no node
    answers, when the nodes do not come to one schema, or when somebody else holds the lock for too long.
    """
    connection = Connection(settings, address, keyspace=False)
    try:
        wait_agreement(connection)
        changes = _plan(connection, settings)
        if refused := [f"{change.thing}: {change.detail}" for change in changes if change.action == "refuse"]:
            raise AglStreamError("; ".join(refused))
        if all(change.action == "keep" for change in changes):
            return changes
        if changes[0].action == "create":
            _change(connection, f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} WITH {changes[0].detail}")
        _use_keyspace(connection)
        for number, (table, columns) in enumerate(_BOOKKEEPING.items()):
            # the same identifier from everybody: else two hosts that do this at once make two tables of one name
            identifier = uuid.uuid5(uuid.NAMESPACE_URL, f"agl-stream/{address.keyspace}/{number}")
            _change(connection, f"CREATE TABLE IF NOT EXISTS {table} {columns} WITH id = {identifier}")
        with _locked(connection):
            # once more: somebody else may have been at it until now
            for change in _plan(connection, settings):
                _carry_out(connection, settings, change)
        return changes
    finally:
        connection.close()


def drop_keyspace(settings: Settings, address: Address) -> None:
    """Remove a keyspace that was made for a measurement, with everything in it."""
    connection = Connection(settings, address, keyspace=False)
    try:
        _change(connection, f"DROP KEYSPACE IF EXISTS {address.keyspace}")
    finally:
        connection.close()


def _plan(connection: Connection, settings: Settings) -> list[Change]:
    address = connection.address
    replication = _read(connection, _KEYSPACE, address.keyspace)
    if not replication:
        first = _creation(connection)
        return [first, *(Change("migrate", m.name) for m in migrations()), *_retention_changes({}, settings)]
    tables = {name: (ttl, compaction) for name, ttl, compaction in _read(connection, _TABLES, address.keyspace)}
    noted: dict[int, tuple[str, str]] = {}
    if "layout" in tables:
        found = _read(connection, _APPLIED.replace("FROM ", f"FROM {address.keyspace}."))
        noted = {number: (name, applied) for number, name, applied in found}
    kept = ", ".join(f"{name}: {value}" for name, value in replication[0][0].items() if name != "class")
    changes = [Change("keep", f"keyspace {address.keyspace}", kept), *_compare(noted)]
    if "facts" in tables:
        for (namespace,) in _read(connection, _NAMESPACE.replace("FROM ", f"FROM {address.keyspace}.")):
            if namespace != settings.namespace:
                detail = f"belongs to namespace {namespace!r}, not {settings.namespace!r}; set AGL_STREAM_NAMESPACE"
                changes.append(Change("refuse", f"keyspace {address.keyspace}", detail))
    return changes + _retention_changes(tables, settings)


def _creation(connection: Connection) -> Change:
    """The keyspace as it would be made: always by data centre, so that a second one can be added later."""
    address = connection.address
    nodes: dict[str, int] = {}
    for host in connection.session.cluster.metadata.all_hosts():
        nodes[host.datacenter] = nodes.get(host.datacenter, 0) + 1
    local = address.local_dc or next(iter(nodes), "")
    copies = {centre or local: count for centre, count in address.replication}
    for centre, count in copies.items():
        if nodes.get(centre, 0) < count:
            return Change(
                "refuse",
                f"keyspace {address.keyspace}",
                f"{count} copies are wanted in data centre {centre}, which has {nodes.get(centre, 0)} nodes; there "
                f"are {', '.join(sorted(nodes))}: set AGL_STREAM_REPLICATION_FACTOR, or replication= in "
                "AGL_STREAM_STORE_URL",
            )
    told = ", ".join(f"'{centre}': {count}" for centre, count in copies.items())
    return Change(
        "create",
        f"keyspace {address.keyspace}",
        f"replication = {{'class': 'NetworkTopologyStrategy', {told}}}",
    )


def _compare(noted: dict[int, tuple[str, str]]) -> list[Change]:
    known = {migration.number: migration for migration in migrations()}
    changes: list[Change] = []
    for migration in known.values():
        name, found = noted.get(migration.number, (migration.name, None))
        if found is None:
            changes.append(Change("migrate", migration.name))
        elif found != migration.hash:
            changes.append(
                Change("refuse", name, "was applied from another text; use the version that made this keyspace")
            )
        else:
            changes.append(Change("keep", name))
    for number in sorted(noted.keys() - known.keys()):
        changes.append(
            Change("refuse", noted[number][0], "is of a later version of agl-stream, which this store needs")
        )
    return changes


def _retention_changes(tables: dict[str, Any], settings: Settings) -> list[Change]:
    changes: list[Change] = []
    for table in RETAINED:
        wanted = wanted_retention(table, settings.store_span_days)
        found = found_retention(*tables[table]) if table in tables else wanted_retention(table, 0)
        if found != wanted:
            kept = f"rows stay {wanted.seconds / 86_400:g} days" if wanted.seconds else "rows stay for ever"
            changes.append(Change("configure", table, kept))
    return changes


def _carry_out(connection: Connection, settings: Settings, change: Change) -> None:
    if change.action == "refuse":
        raise AglStreamError(f"{change.thing}: {change.detail}")
    if change.action == "migrate":
        migration = next(migration for migration in migrations() if migration.name == change.thing)
        for statement in migration.statements():
            _change(connection, statement)
        _note(connection, settings, migration)
    elif change.action == "configure":
        _change(connection, wanted_retention(change.thing, settings.store_span_days).alteration(change.thing))


def _use_keyspace(connection: Connection) -> None:
    """A keyspace that somebody else is just making is listed a moment before it can be used."""
    deadline = time.monotonic() + _MAKING_SECONDS
    while True:
        try:
            with connection.explained():
                connection.session.set_keyspace(connection.address.keyspace)
            return
        except SettingError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _note(connection: Connection, settings: Settings, migration: Migration) -> None:
    _read(connection, _SET_NAMESPACE, settings.namespace)
    _read(connection, _NOTE, migration.number, migration.name, migration.hash, now_us())


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Alone among all that apply to this keyspace. The lock of one that died goes by itself after two minutes."""
    owner = f"{socket.gethostname()}/{getpid()}/{uuid.uuid4().hex[:8]}"
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        applied, *held_by = _read(connection, _LOCK, owner)[0]
        # the answer to a try that timed out may have been lost: then the lock is ours all the same
        if applied or owner in held_by:
            break
        if time.monotonic() > deadline:
            raise EngineUnreachable(
                f"{held_by[-1]} has been changing the state store at {connection.address} for {_PATIENCE_SECONDS:g} s"
            )
        time.sleep(0.2)
    try:
        yield
    finally:
        _read(connection, _UNLOCK, owner)


def _read(connection: Connection, statement: str, *values: Any) -> list[Any]:
    with connection.explained():
        return list(connection.session.execute(connection.prepared(statement), values))


def _change(connection: Connection, statement: str) -> None:
    with connection.explained():
        connection.session.execute(statement, timeout=_CHANGE_SECONDS)
    wait_agreement(connection)
