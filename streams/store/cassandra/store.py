"""The state store on Apache Cassandra: many machines, the same answers as the embedded one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from agl_stream.errors import SettingError
from agl_stream.schemas.events import Event
from agl_stream.settings import Settings
from agl_stream.streams.ledger.core import Ledger, Settlement
from agl_stream.streams.store import tables
from agl_stream.streams.store.cassandra import cells, reading, statements
from agl_stream.streams.store.cassandra.address import Address
from agl_stream.streams.store.cassandra.answering import named, select, still_meeting
from agl_stream.streams.store.cassandra.applied import Applied
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.durability import warn_of_late_sync
from agl_stream.streams.store.cassandra.layout import check_layout
from agl_stream.streams.store.cassandra.requests import read, read_all
from agl_stream.streams.store.cassandra.spans import count_spans, get_spans
from agl_stream.streams.store.cassandra.writing import (
    REJECT_HEAD,
    RESOURCES_BUCKET,
    RESOURCES_HEAD,
    ROLLOUT_HEAD,
    TRIPLET_SHARDS,
    WORKER_SHARDS,
    Writer,
    reject_place,
    rollout_head,
    run_scope,
)
from agl_stream.streams.store.port import ALL, Applicable, Page, Query

_NOT_TRAINING = ("val", "test")
_FEW = 500
"""Rollouts up to this number are asked for one by one; for more, the lists are read."""


class CassandraStore:
    """StateStore in one keyspace. Reads and writes are LOCAL_QUORUM: what ``apply`` has returned from is seen by every
    reader, whichever replica falls out.

    ``apply`` is not one transaction: rows are written first and the offsets that cover them last. After a crash in
    between, the same records come again and change nothing; until then readers may see some of them early.
    """

    def __init__(self, settings: Settings, address: Address, *, read_only: bool = False) -> None:
        """Raises EngineUnreachable when no node answers, SettingError when the keyspace has another layout than this
        version's or belongs to another namespace; the message names the remedy."""
        self._connection = Connection(settings, address)
        try:
            check_layout(self._connection, settings)
            if not read_only:
                warn_of_late_sync(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._read_only = read_only
        self._writing = threading.Lock()
        self._applied = Applied(self._connection)
        self._writer = Writer(self._connection, self._applied)

    # writing

    def apply(self, records: Sequence[Applicable]) -> None:
        """Blocks while the database is slower than the log: that is the back-pressure of the sink."""
        self._check_writable()
        if records:
            with self._writing, self._connection.explained():
                self._writer.apply(records)

    def restart(self, topic: str, partition: int) -> None:
        self._check_writable()
        with self._writing, self._connection.explained():
            self._applied.restart((topic, partition))

    def close(self) -> None:
        self._connection.close()

    # rollouts

    def get_rollout(self, rollout_id: str) -> Event | None:
        return self.get_rollouts([rollout_id]).get(rollout_id)

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]:
        found = (reading.rollout(stored) for stored in self._by_key(statements.GET_ROLLOUT, rollout_ids))
        return {event["rollout_id"]: event for event in found}

    def query_rollouts(self, query: Query = ALL) -> Page:
        ids = named(query, "rollout_id")
        if ids is None or len(ids) > _FEW:
            rows = self._rollout_heads(named(query, "run_id"))
        else:
            known = self.get_rollouts(rollout_id for rollout_id in ids if isinstance(rollout_id, str))
            rows = [_head_of(event) for event in known.values()]
        chosen, total = select(tables.ROLLOUTS, rows, query)
        events = self.get_rollouts(row["rollout_id"] for row in chosen)
        # the lists are read before the rollouts, which may have moved on meanwhile
        now = [_head_of(events[row["rollout_id"]]) for row in chosen if row["rollout_id"] in events]
        left = still_meeting(tables.ROLLOUTS, now, query)
        return _page([events[row["rollout_id"]] for row in left], query, total - len(chosen) + len(left))

    def count_rollouts_by_status(self, run_id: str | None = None, mode: str | None = None) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self._rollout_heads(None if run_id is None else [run_id]):
            if (run_id is None or row["run_id"] == run_id) and (mode is None or row["mode"] == mode):
                counts[row["status"]] = counts.get(row["status"], 0) + 1
        return counts

    # spans and triplets

    def get_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Event]:
        return self.query_spans(rollout_id, attempt_id).items

    def query_spans(self, rollout_id: str, attempt_id: str | None = None, query: Query = ALL) -> Page:
        chosen, total = select(tables.SPANS, get_spans(self._connection, rollout_id, attempt_id), query)
        return _page(chosen, query, total)

    def last_activity(self, attempt_ids: Iterable[str]) -> dict[str, int]:
        by_key = {cells.key(attempt_id): attempt_id for attempt_id in attempt_ids}
        asked = ((statements.GET_ACTIVITY, (key,)) for key in by_key)
        return {by_key[key]: at for rows in read_all(self._connection, asked) for key, at in rows}

    def get_triplets(self, rollout_id: str) -> Event | None:
        for stored in self._by_key(statements.GET_TRIPLETS, [rollout_id]):
            return reading.triplets(stored)
        return None

    # resources, workers, batches, rejects

    def latest_resources(self, resources_id: str | None = None) -> Event | None:
        if resources_id is None:
            heads = self._heads("resources", statements.RESOURCES_HEADS, RESOURCES_HEAD)
            last = max(heads, key=_publication, default=None)
            return None if last is None else self.get_resources(last["resources_id"], last["version"])
        key = cells.key(resources_id)
        buckets = [bucket for _, bucket in read(self._connection, statements.BUCKETS_OF, "resources", key)]
        for bucket in sorted(buckets, reverse=True):
            for (stored,) in read(self._connection, statements.LATEST_RESOURCES, key, bucket):
                return reading.resources(stored)
        return None

    def get_resources(self, resources_id: str, version: int) -> Event | None:
        place = cells.key(resources_id), version // RESOURCES_BUCKET, version
        found = read(self._connection, statements.GET_RESOURCES, *place)
        return reading.resources(found[0][0]) if found else None

    def query_resources(self, query: Query = ALL) -> Page:
        rows = list(self._heads("resources", statements.RESOURCES_HEADS, RESOURCES_HEAD))
        chosen, total = select(tables.RESOURCES, rows, query)
        asked = (
            (
                statements.GET_RESOURCES,
                (cells.key(row["resources_id"]), row["version"] // RESOURCES_BUCKET, row["version"]),
            )
            for row in chosen
        )
        return _page(self._events(reading.resources, asked), query, total)

    def workers(self) -> list[Event]:
        return self.query_workers().items

    def query_workers(self, query: Query = ALL) -> Page:
        asked = ((statements.GET_WORKERS, (shard,)) for shard in range(WORKER_SHARDS))
        chosen, total = select(tables.WORKERS, self._events(reading.worker, asked), query)
        return _page(chosen, query, total)

    def batches(self, learner_id: str | None = None) -> list[Event]:
        scopes = None if learner_id is None else [cells.key(learner_id)]
        asked = ((statements.GET_BATCHES, place) for place in self._buckets("batches", scopes))
        return sorted(self._events(reading.batch, asked), key=lambda event: (event["learner_id"], event["step"]))

    def rejects_by_reason(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self._heads("rejects", statements.REJECT_HEADS, REJECT_HEAD):
            counts[row["reason_code"]] = counts.get(row["reason_code"], 0) + 1
        return counts

    def query_rejects(self, query: Query = ALL) -> Page:
        rows = list(self._heads("rejects", statements.REJECT_HEADS, REJECT_HEAD))
        chosen, total = select(tables.REJECTS, rows, query)
        asked = ((statements.GET_REJECT, (cells.key(source), *rest)) for source, *rest in map(reject_place, chosen))
        return _page(self._events(reading.reject, asked), query, total)

    # the whole

    def applied_offset(self, topic: str, partition: int) -> int | None:
        return self._applied.one((topic, partition))

    def applied_offsets(self) -> dict[tuple[str, int], int]:
        return self._applied.all()

    def account(self, run_id: str | None = None) -> dict[str, Any]:
        told: dict[str, list[Settlement]] = {}
        runs: dict[str, set[str | None]] = {}
        for learner_id, step, run, settled in self._settlements():
            for rollout_id, outcome, reason in settled:
                told.setdefault(rollout_id, []).append(Settlement(learner_id, step, outcome, reason))
                runs.setdefault(rollout_id, set()).add(run)
        ledger = Ledger()
        for row in self._rollout_heads(None if run_id is None else [run_id]):
            settlements = told.pop(row["rollout_id"], [])
            if row["mode"] not in _NOT_TRAINING and (run_id is None or row["run_id"] == run_id):
                ledger.add(row["rollout_id"], row["run_id"], row["status"], row["reason_code"], settlements)
        unknown = [rollout_id for rollout_id in told if run_id is None or run_id in runs[rollout_id]]
        if unknown and run_id is not None:
            # settled by this run and requested by another: known, and none of this account
            known = self.get_rollouts(unknown)
            unknown = [rollout_id for rollout_id in unknown if rollout_id not in known]
        for rollout_id in unknown:
            ledger.add_unrequested(rollout_id)
        return ledger.result()

    def counts(self) -> dict[str, int]:
        heads = self._rollout_heads(None)
        shards = ((statements.COUNT_TRIPLETS, (shard,)) for shard in range(TRIPLET_SHARDS))
        return {
            "rollouts": len(heads),
            "spans": count_spans(self._connection),
            "triplets": sum(count for rows in read_all(self._connection, shards) for (count,) in rows),
            "resources": sum(1 for _ in self._heads("resources", statements.RESOURCES_HEADS, RESOURCES_HEAD)),
            "workers": len(self.workers()),
            "batches": sum(1 for _ in self._settlements()),
            "rejects": sum(1 for _ in self._heads("rejects", statements.REJECT_HEADS, REJECT_HEAD)),
            "attempts": sum(row["attempt_number"] or 0 for row in heads),
        }

    # shared

    def _check_writable(self) -> None:
        if self._read_only:
            raise SettingError(f"the state store at {self._connection.address} was opened for reading only")

    def _by_key(self, statement: str, names: Iterable[str]) -> Iterator[bytes]:
        """The only cell of the row of each name that is there."""
        asked = ((statement, (key,)) for key in {cells.key(name) for name in names})
        return (stored for rows in read_all(self._connection, asked) for (stored,) in rows)

    def _events(self, event_of: Callable[[bytes], Event], asked: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Event]:
        return [event_of(stored) for rows in read_all(self._connection, asked) for (stored,) in rows]

    def _buckets(self, listing: str, scopes: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The partitions of a list: all, or those of some scopes."""
        if scopes is None:
            return read(self._connection, statements.BUCKETS, listing)
        asked = ((statements.BUCKETS_OF, (listing, scope)) for scope in set(scopes))
        return [place for rows in read_all(self._connection, asked) for place in rows]

    def _cells(self, listing: str, statement: str, scopes: Iterable[str] | None = None) -> Iterator[Any]:
        asked = ((statement, place) for place in self._buckets(listing, scopes))
        for rows in read_all(self._connection, asked):
            for (stored,) in rows:
                yield orjson.loads(cells.content_of(stored))

    def _heads(
        self, listing: str, statement: str, fields: Sequence[str], scopes: Iterable[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        for values in self._cells(listing, statement, scopes):
            yield dict(zip(fields, values, strict=True))

    def _rollout_heads(self, runs: Iterable[Any] | None) -> list[dict[str, Any]]:
        """Of all rollouts, or at least of those of some runs."""
        scopes = None if runs is None else [run_scope(run) for run in runs if run is None or isinstance(run, str)]
        return list(self._heads("rollouts", statements.ROLLOUT_HEADS, ROLLOUT_HEAD, scopes))

    def _settlements(self) -> Iterator[Any]:
        """(learner_id, step, run_id, [(rollout_id, outcome, reason_code)]) of every training step."""
        return self._cells("batches", statements.BATCH_HEADS)


def _publication(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["occurred_at_us"], row["version"], row["resources_id"]


def _page(items: list[Event], query: Query, total: int) -> Page:
    return Page(items, query.limit, query.offset, total)


def _head_of(event: Event) -> dict[str, Any]:
    """What queries may name of a rollout."""
    return dict(zip(ROLLOUT_HEAD, rollout_head(event), strict=True))
