"""The writing half of the SQLite store: each topic's upsert, all in one transaction with the applied offsets.

Whatever comes again or late changes nothing: a row is replaced only by what the port names as the one to keep. Two
events of a key at the same microsecond are told apart by their text, so that here, too, no order matters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from agl_stream.schemas.events import Event
from agl_stream.streams.store import sqlite_rows as rows
from agl_stream.streams.store.port import Applicable


def _later(table: str, *told_apart_by: str) -> str:
    columns = ("occurred_at_us", *told_apart_by)
    new, old = (", ".join(f"{source}.{column}" for column in columns) for source in ("excluded", table))
    return f"({new}) > ({old})"


_SPANS = rows.insert("spans", rows.SPAN_COLUMNS, "ON CONFLICT DO NOTHING")
_ACTIVITY = rows.insert(
    "activity",
    ("attempt_id", "last_span_at_us"),
    "ON CONFLICT (attempt_id) DO UPDATE SET last_span_at_us = max(last_span_at_us, excluded.last_span_at_us)",
)
_ROLLOUTS = rows.insert(
    "rollouts",
    rows.ROLLOUT_COLUMNS,
    rows.replace_when(rows.ROLLOUT_COLUMNS, ("rollout_id",), "excluded.version > rollouts.version"),
)
_TRIPLETS = rows.insert(
    "triplets",
    rows.TRIPLET_COLUMNS,
    rows.replace_when(
        rows.TRIPLET_COLUMNS,
        ("rollout_id",),
        "(excluded.revision, excluded.spans_total) > (triplets.revision, triplets.spans_total)",
    ),
)
_CALLS = rows.insert("triplet_calls", ("rollout_id", "position", *rows.CALL_FIELDS), "")
_RESOURCES = rows.insert(
    "resources",
    rows.RESOURCES_COLUMNS,
    rows.replace_when(rows.RESOURCES_COLUMNS, ("resources_id", "version"), _later("resources", "event")),
)
_WORKERS = rows.insert(
    "workers",
    rows.WORKER_COLUMNS,
    rows.replace_when(rows.WORKER_COLUMNS, ("worker_id",), _later("workers", "event")),
)
_BATCHES = rows.insert(
    "batches",
    rows.BATCH_COLUMNS,
    rows.replace_when(
        rows.BATCH_COLUMNS,
        ("learner_id", "step"),
        "(excluded.ended_at_us, excluded.manifest_hash) > (batches.ended_at_us, batches.manifest_hash)",
    ),
)
_SETTLEMENTS = rows.insert("settlements", rows.SETTLEMENT_COLUMNS, "ON CONFLICT DO NOTHING")
_REJECTS = rows.insert(
    "rejects",
    rows.REJECT_COLUMNS,
    rows.replace_when(rows.REJECT_COLUMNS, ("reject_key",), _later("rejects", "event_id", "rejected_by", "detail")),
)
_APPLIED = rows.insert(
    "applied",
    ("topic", "partition", "next_offset"),
    "ON CONFLICT (topic, partition) DO UPDATE SET next_offset = max(next_offset, excluded.next_offset)",
)


def apply(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    """Apply the records and their offsets inside the caller's transaction."""
    by_topic: dict[str, list[Applicable]] = {}
    positions: dict[tuple[str, int], int] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
        positions[record.topic, record.partition] = record.offset + 1
    for topic, group in by_topic.items():
        if topic in _APPLY:
            _APPLY[topic](connection, group)
    connection.executemany(_APPLIED, [(topic, number, offset) for (topic, number), offset in positions.items()])


def _spans(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    connection.executemany(_SPANS, map(rows.span_row, records))
    latest: dict[str, int] = {}
    for record in records:
        event = record.event
        if event["occurred_at_us"] > latest.get(event["attempt_id"], -1):
            latest[event["attempt_id"]] = event["occurred_at_us"]
    connection.executemany(_ACTIVITY, latest.items())


def _rollouts(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    newest: dict[str, Event] = {}
    for record in records:
        event = record.event
        known = newest.get(event["rollout_id"])
        if known is None or event["version"] > known["version"]:
            newest[event["rollout_id"]] = event
    connection.executemany(_ROLLOUTS, map(rows.rollout_row, newest.values()))


def _triplets(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    for record in records:
        event = record.event
        if connection.execute(_TRIPLETS, rows.triplets_row(event)).rowcount:
            connection.execute("DELETE FROM triplet_calls WHERE rollout_id = ?", (event["rollout_id"],))
            connection.executemany(_CALLS, rows.call_rows(event))


def _resources(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    connection.executemany(_RESOURCES, [rows.plain_row(rows.RESOURCES_COLUMNS, r.event) for r in records])


def _workers(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    connection.executemany(_WORKERS, [rows.plain_row(rows.WORKER_COLUMNS, r.event) for r in records])


def _batches(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    for record in records:
        event = record.event
        if connection.execute(_BATCHES, rows.plain_row(rows.BATCH_COLUMNS, event)).rowcount:
            step = (event["learner_id"], event["step"])
            connection.execute("DELETE FROM settlements WHERE learner_id = ? AND step = ?", step)
            connection.executemany(_SETTLEMENTS, rows.settlement_rows(event))


def _rejects(connection: sqlite3.Connection, records: Sequence[Applicable]) -> None:
    connection.executemany(_REJECTS, [rows.reject_row(r.event) for r in records])


_APPLY: dict[str, Callable[[sqlite3.Connection, Sequence[Applicable]], None]] = {
    "spans": _spans,
    "rollouts": _rollouts,
    "triplets": _triplets,
    "resources": _resources,
    "workers": _workers,
    "batches": _batches,
    "rejects": _rejects,
}
