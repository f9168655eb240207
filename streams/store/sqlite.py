"""The embedded state store: one SQLite file, written by the sink, read by everybody."""

# ruff: noqa: S608 - statements are put together from this room's own names, values are always parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from agl_stream.schemas.events import Event
from agl_stream.streams.ledger.core import Ledger, Settlement
from agl_stream.streams.store import sqlite_apply, sqlite_rows
from agl_stream.streams.store.port import ALL, Applicable, Page, Query
from agl_stream.streams.store.sqlite_connections import Connections
from agl_stream.streams.store.sqlite_query import one_of, order_and_limit, where
from agl_stream.streams.store.tables import REJECTS, RESOURCES, ROLLOUTS, SPANS, WORKERS, Table

_SPAN_SELECT = ", ".join(sqlite_rows.SPAN_COLUMNS)
_REJECT_SELECT = ", ".join(sqlite_rows.REJECT_FIELDS)


class SqliteStore:
    """StateStore over the file at ``path``. Read-only, it works before the file exists and sees nothing then."""

    def __init__(self, path: Path, *, namespace: str = "agl", read_only: bool = False) -> None:
        """Raises SettingError when the file belongs to another namespace or a newer layout, FolderNotWritable."""
        self._connections = Connections(path, namespace, read_only=read_only)

    # writing

    def apply(self, records: Sequence[Applicable]) -> None:
        if records:
            with self._connections.transaction() as connection:
                sqlite_apply.apply(connection, records)

    def restart(self, topic: str, partition: int) -> None:
        with self._connections.transaction() as connection:
            connection.execute("DELETE FROM applied WHERE topic = ? AND partition = ?", (topic, partition))

    def close(self) -> None:
        self._connections.close()

    # rollouts

    def get_rollout(self, rollout_id: str) -> Event | None:
        return self._event("SELECT event FROM rollouts WHERE rollout_id = ?", rollout_id)

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]:
        asked, values = one_of("rollout_id", list(rollout_ids))
        found = self._rows(f"SELECT rollout_id, event FROM rollouts WHERE {asked}", *values)
        return {rollout_id: orjson.loads(event) for rollout_id, event in found}

    def query_rollouts(self, query: Query = ALL) -> Page:
        return self._page(ROLLOUTS, query)

    def count_rollouts_by_status(self, run_id: str | None = None, mode: str | None = None) -> dict[str, int]:
        asked = {name: value for name, value in (("run_id", run_id), ("mode", mode)) if value is not None}
        clause, values = where(ROLLOUTS, ALL, asked)
        return dict(self._rows(f"SELECT status, count(*) FROM rollouts{clause} GROUP BY status", *values))

    # spans and triplets

    def get_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Event]:
        return self.query_spans(rollout_id, attempt_id).items

    def query_spans(self, rollout_id: str, attempt_id: str | None = None, query: Query = ALL) -> Page:
        fixed = {"rollout_id": rollout_id} | ({} if attempt_id is None else {"attempt_id": attempt_id})
        return self._page(SPANS, query, fixed)

    def last_activity(self, attempt_ids: Iterable[str]) -> dict[str, int]:
        asked, values = one_of("attempt_id", list(attempt_ids))
        return dict(self._rows(f"SELECT attempt_id, last_span_at_us FROM activity WHERE {asked}", *values))

    def get_triplets(self, rollout_id: str) -> Event | None:
        # one statement, so that header and calls are of one revision
        calls = ", ".join(f"c.{field}" for field in sqlite_rows.CALL_FIELDS)
        found = self._rows(
            f"SELECT t.event, {calls} FROM triplets t LEFT JOIN triplet_calls c USING (rollout_id) "
            "WHERE t.rollout_id = ? ORDER BY c.position",
            rollout_id,
        )
        if not found:
            return None
        return sqlite_rows.triplets_event(found[0][0], [row[1:] for row in found if row[1] is not None])

    # resources, workers, batches, rejects

    def latest_resources(self, resources_id: str | None = None) -> Event | None:
        if resources_id is None:
            return self._event(
                "SELECT event FROM resources ORDER BY occurred_at_us DESC, version DESC, resources_id DESC LIMIT 1"
            )
        return self._event(
            "SELECT event FROM resources WHERE resources_id = ? ORDER BY version DESC LIMIT 1", resources_id
        )

    def get_resources(self, resources_id: str, version: int) -> Event | None:
        return self._event("SELECT event FROM resources WHERE resources_id = ? AND version = ?", resources_id, version)

    def query_resources(self, query: Query = ALL) -> Page:
        return self._page(RESOURCES, query)

    def workers(self) -> list[Event]:
        return self.query_workers().items

    def query_workers(self, query: Query = ALL) -> Page:
        return self._page(WORKERS, query)

    def batches(self, learner_id: str | None = None) -> list[Event]:
        clause, values = ("", ()) if learner_id is None else (" WHERE learner_id = ?", (learner_id,))
        found = self._rows(f"SELECT event FROM batches{clause} ORDER BY learner_id, step", *values)
        return [orjson.loads(event) for (event,) in found]

    def rejects_by_reason(self) -> dict[str, int]:
        return dict(self._rows("SELECT reason_code, count(*) FROM rejects GROUP BY reason_code"))

    def query_rejects(self, query: Query = ALL) -> Page:
        return self._page(REJECTS, query)

    # the whole

    def applied_offset(self, topic: str, partition: int) -> int | None:
        found = self._rows("SELECT next_offset FROM applied WHERE topic = ? AND partition = ?", topic, partition)
        return found[0][0] if found else None

    def applied_offsets(self) -> dict[tuple[str, int], int]:
        found = self._rows("SELECT topic, partition, next_offset FROM applied")
        return {(topic, partition): next_offset for topic, partition, next_offset in found}

    def account(self, run_id: str | None = None) -> dict[str, Any]:
        ledger = Ledger()
        of_run, run = ("", ()) if run_id is None else (" AND r.run_id = ?", (run_id,))
        with self._connections.snapshot() as connection:
            rows = connection.execute(
                "SELECT r.rollout_id, r.run_id, r.status, r.reason_code, "
                "s.learner_id, s.step, s.outcome, s.reason_code FROM rollouts r LEFT JOIN settlements s "
                f"USING (rollout_id) WHERE r.mode NOT IN ('val', 'test'){of_run} ORDER BY r.rollout_id",
                run,
            )
            for (rollout_id, of, status, reason), told in groupby(rows, key=lambda row: row[:4]):
                settlements = [Settlement(*row[4:]) for row in told if row[4] is not None]
                ledger.add(rollout_id, of, status, reason, settlements)
            unknown = connection.execute(
                "SELECT DISTINCT s.rollout_id FROM settlements s WHERE NOT EXISTS "
                f"(SELECT 1 FROM rollouts r WHERE r.rollout_id = s.rollout_id){of_run.replace('r.', 's.')}",
                run,
            )
            for (rollout_id,) in unknown:
                ledger.add_unrequested(rollout_id)
        return ledger.result()

    def counts(self) -> dict[str, int]:
        tables = ("rollouts", "spans", "triplets", "resources", "workers", "batches", "rejects")
        counted = ", ".join(f"(SELECT count(*) FROM {name}) AS {name}" for name in tables)
        attempts = "(SELECT coalesce(sum(attempt_number), 0) FROM rollouts) AS attempts"
        row = self._rows(f"SELECT {counted}, {attempts}")[0]
        return dict(zip((*tables, "attempts"), row, strict=True))

    # shared

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connections.reading() as connection:
            return connection.execute(statement, values).fetchall()

    def _event(self, statement: str, *values: Any) -> Event | None:
        found = self._rows(statement, *values)
        return orjson.loads(found[0][0]) if found else None

    def _page(self, asked: Table, query: Query, fixed: Mapping[str, Any] | None = None) -> Page:
        columns, build = _READ.get(asked.name, ("event", lambda row: orjson.loads(row[0])))
        clause, values = where(asked, query, fixed)
        statement = f"SELECT {columns} FROM {asked.name}{clause}{order_and_limit(asked, query)}"
        with self._connections.snapshot() as connection:
            found = connection.execute(statement, values).fetchall()
            if query.limit < 0 and not query.offset:
                total = len(found)
            else:
                total = connection.execute(f"SELECT count(*) FROM {asked.name}{clause}", values).fetchone()[0]
        return Page([build(row) for row in found], query.limit, query.offset, total)


_READ: dict[str, tuple[str, Any]] = {
    "spans": (_SPAN_SELECT, sqlite_rows.span_event),
    "rejects": (_REJECT_SELECT, sqlite_rows.reject_event),
}
