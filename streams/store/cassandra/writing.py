"""Records of the log to rows: what each topic's events become in the tables of the Cassandra store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any
from zlib import crc32

from agl_stream.schemas.events import Event
from agl_stream.streams.store.cassandra import cells, statements
from agl_stream.streams.store.cassandra.applied import Applied
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.requests import Writes
from agl_stream.streams.store.cassandra.span_buckets import SpanBuckets
from agl_stream.streams.store.port import Applicable, latest_attempt

DAY_US = 86_400_000_000
ROLLOUT_SHARDS = 8
TRIPLET_SHARDS = 16
WORKER_SHARDS = 4
RESOURCES_BUCKET = 1000
BATCH_BUCKET = 200
REJECT_BUCKET = 1000

ROLLOUT_HEAD = (
    *("rollout_id", "version", "status", "reason_code", "mode", "resources_id", "resources_version", "run_id"),
    *("group_id", "requested_at_us", "ended_at_us", "attempt_id", "attempt_number", "worker_id"),
)
_rollout_head = itemgetter(*ROLLOUT_HEAD[:11])
RESOURCES_HEAD = ("resources_id", "version", "occurred_at_us", "run_id", "step")
_resources_head = itemgetter(*RESOURCES_HEAD)
REJECT_HEAD = (
    *("source_topic", "source_partition", "source_offset", "reason_code", "rollout_id", "attempt_id", "rejected_by"),
    *("occurred_at_us", "event_id"),
)
_reject_head = itemgetter(*REJECT_HEAD)
_settlement = itemgetter("rollout_id", "outcome", "reason_code")

Bucket = tuple[str, str, int]


def rollout_head(event: Event) -> tuple[Any, ...]:
    """Values of ROLLOUT_HEAD: what queries may name of a rollout, its latest attempt included."""
    attempt = latest_attempt(event) or {}
    return (*_rollout_head(event), *map(attempt.get, ROLLOUT_HEAD[11:]))


def shard_of(text: str, shards: int) -> int:
    return crc32(text.encode()) % shards


def run_scope(run_id: str | None) -> str:
    """Rollouts of no run are listed together, under the empty name."""
    return cells.key(run_id) if run_id else ""


def reject_place(event: Event) -> tuple[str, int, str]:
    """Source, bucket and key of a reject. What came from no place on the log is known by its event_id."""
    source = f"{event['source_topic']}/{event['source_partition']}"
    offset: int = event["source_offset"]
    if offset < 0:
        return source, -1 - shard_of(event["event_id"], WORKER_SHARDS), cells.key(event["event_id"])
    return source, offset // REJECT_BUCKET, cells.key(f"{offset}/{event['reason_code']}")


class Writer:
    """Applies batches of records. Not thread-safe."""

    def __init__(self, connection: Connection, applied: Applied) -> None:
        self._connection = connection
        self._applied = applied
        self._span_buckets = SpanBuckets()
        self._listed: set[Bucket] = set()

    def apply(self, records: Sequence[Applicable]) -> None:
        """Rows first, offsets after them. Nothing is written for a batch that holds a record of another shape."""
        by_topic: dict[str, list[Applicable]] = {}
        positions: dict[tuple[str, int], int] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
            positions[record.topic, record.partition] = record.offset + 1
        batch = _Batch(self._applied.base, self._span_buckets, self._listed)
        try:
            for topic, group in by_topic.items():
                if topic in _ROWS:
                    _ROWS[topic](batch, group)
            batch.writes.carry_out(self._connection)
            self._applied.note(positions)
        except BaseException:
            self._span_buckets.forget()
            raise
        if len(self._listed) > _REMEMBERED:
            self._listed.clear()
        self._listed |= batch.listed


_REMEMBERED = 100_000


class _Batch:
    """The rows of one batch of records."""

    def __init__(self, base: Callable[[tuple[str, int]], int], span_buckets: SpanBuckets, listed: set[Bucket]) -> None:
        self.writes = Writes()
        self.listed: set[Bucket] = set()
        self._base = base
        self._span_buckets = span_buckets
        self._listed_before = listed

    def spans(self, records: Sequence[Applicable]) -> None:
        groups: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
        latest: dict[str, int] = {}
        add, key, place = self.writes.add, cells.key, self._span_buckets.place
        for record in records:
            event = record.event
            rollout_id, attempt_id, at = key(event["rollout_id"]), key(event["attempt_id"]), event["occurred_at_us"]
            body = cells.body_of_record("SpanRecorded", record)
            bucket, opened = place((rollout_id, attempt_id), record.offset, len(body))
            if opened:
                add(statements.PUT_SPAN_BUCKET, 1, (rollout_id, attempt_id, bucket, cells.of_time(at)))
            partition = (rollout_id, attempt_id, bucket)
            rows = groups.get(partition)
            if rows is None:
                rows = groups[partition] = []
            rows.append(
                (
                    *partition, event["sequence_id"], key(event["span_id"]), record.partition, record.offset, body,
                    cells.of_time(at),
                )
            )  # fmt: skip
            if at > latest.get(attempt_id, cells.NEVER):
                latest[attempt_id] = at
        for partition, rows in groups.items():
            self.writes.extend(statements.PUT_SPAN, partition, rows)
        for attempt_id, at in latest.items():
            add(statements.PUT_ACTIVITY, 1, (attempt_id, at, cells.of_time(at)))

    def rollouts(self, records: Sequence[Applicable]) -> None:
        newest: dict[str, Applicable] = {}
        for record in records:
            known = newest.get(record.event["rollout_id"])
            if known is None or record.event["version"] > known.event["version"]:
                newest[record.event["rollout_id"]] = record
        for record in newest.values():
            event = record.event
            rollout_id, version, run_id = cells.key(event["rollout_id"]), event["version"], run_scope(event["run_id"])
            rank = cells.rank_by_place(record.offset)
            stamp = cells.of_version(self._base((record.topic, record.partition)), version)
            body = cells.cell(rank, cells.body_of_record("RolloutStateChanged", record))
            head = cells.cell(rank, cells.head(rollout_head(event)))
            bucket = event["requested_at_us"] // DAY_US * ROLLOUT_SHARDS + shard_of(rollout_id, ROLLOUT_SHARDS)
            self.writes.add(statements.PUT_ROLLOUT, 1, (rollout_id, version, body, stamp))
            self.writes.add(statements.LIST_ROLLOUT, 2, (run_id, bucket, rollout_id, head, stamp))
            self._list("rollouts", run_id, bucket)

    def triplets(self, records: Sequence[Applicable]) -> None:
        for record in records:
            event = record.event
            rollout_id = cells.key(event["rollout_id"])
            base = self._base((record.topic, record.partition))
            stamp = cells.of_revision(base, event["revision"], event["spans_total"])
            body = cells.cell(cells.rank_by_place(record.offset), cells.body_of_record("TripletsJoined", record))
            self.writes.add(statements.PUT_TRIPLETS, 1, (rollout_id, body, stamp))
            self.writes.add(statements.LIST_TRIPLETS, 1, (shard_of(rollout_id, TRIPLET_SHARDS), rollout_id, _ONCE))

    def resources(self, records: Sequence[Applicable]) -> None:
        for record in records:
            event = record.event
            rank = cells.rank_by_names(event["event_id"])
            resources_id, version = cells.key(event["resources_id"]), event["version"]
            bucket = version // RESOURCES_BUCKET
            head = cells.cell(rank, cells.head(_resources_head(event)))
            body = cells.cell(rank, cells.body_of_record("ResourcesPublished", record))
            stamp = cells.of_time(event["occurred_at_us"])
            self.writes.add(statements.PUT_RESOURCES, 2, (resources_id, bucket, version, head, body, stamp))
            self._list("resources", resources_id, bucket)

    def workers(self, records: Sequence[Applicable]) -> None:
        for record in records:
            event = record.event
            worker_id = cells.key(event["worker_id"])
            body = cells.cell(cells.rank_by_names(event["event_id"]), cells.body_of_record("WorkerHeartbeat", record))
            shard, stamp = shard_of(worker_id, WORKER_SHARDS), cells.of_time(event["occurred_at_us"])
            self.writes.add(statements.PUT_WORKER, 1, (shard, worker_id, body, stamp))

    def batches(self, records: Sequence[Applicable]) -> None:
        for record in records:
            event = record.event
            rank = cells.rank_by_names(event["manifest_hash"])
            learner_id, step = cells.key(event["learner_id"]), event["step"]
            bucket = step // BATCH_BUCKET
            told = [event["learner_id"], step, event["run_id"], [_settlement(entry) for entry in event["rollouts"]]]
            head = cells.cell(rank, cells.head(told))
            body = cells.cell(rank, cells.body_of_record("BatchTrained", record))
            stamp = cells.of_time(event["ended_at_us"])
            self.writes.add(statements.PUT_BATCH, 2, (learner_id, bucket, step, head, body, stamp))
            self._list("batches", learner_id, bucket)

    def rejects(self, records: Sequence[Applicable]) -> None:
        for record in records:
            event = record.event
            rank = cells.rank_by_names(event["event_id"], event["rejected_by"], event["detail"])
            source, bucket, key = reject_place(event)
            head = cells.cell(rank, cells.head(_reject_head(event)))
            body = cells.cell(rank, cells.body_of_record("RecordRejected", record))
            stamp = cells.of_time(event["occurred_at_us"])
            self.writes.add(statements.PUT_REJECT, 2, (cells.key(source), bucket, key, head, body, stamp))
            self._list("rejects", cells.key(source), bucket)

    def _list(self, listing: str, scope: str, bucket: int) -> None:
        found = (listing, scope, bucket)
        if found not in self.listed and found not in self._listed_before:
            self.listed.add(found)
            self.writes.add(statements.PUT_BUCKET, 1, (*found, _ONCE))


_ONCE = 1
"""Timestamp of rows that are all key: there is nothing to tell apart."""

_ROWS: dict[str, Callable[[_Batch, Sequence[Applicable]], None]] = {
    "spans": _Batch.spans,
    "rollouts": _Batch.rollouts,
    "triplets": _Batch.triplets,
    "resources": _Batch.resources,
    "workers": _Batch.workers,
    "batches": _Batch.batches,
    "rejects": _Batch.rejects,
}
