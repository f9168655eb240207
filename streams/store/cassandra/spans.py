"""The spans of rollouts, from all the buckets they stand in, each once."""

from __future__ import annotations

from collections.abc import Iterator

from agl_stream.schemas.events import Event
from agl_stream.streams.store.cassandra import cells, reading, statements
from agl_stream.streams.store.cassandra.connection import Connection
from agl_stream.streams.store.cassandra.requests import read, read_all

_ATTEMPTS_AT_ONCE = 200


def get_spans(connection: Connection, rollout_id: str, attempt_id: str | None) -> list[Event]:
    """In no order. Of several deliveries of a span the one that came first on the log is taken."""
    rollout = cells.key(rollout_id)
    if attempt_id is None:
        buckets = read(connection, statements.SPAN_BUCKETS, rollout)
    else:
        buckets = read(connection, statements.SPAN_BUCKETS_OF, rollout, cells.key(attempt_id))
    first: dict[tuple[str, str], tuple[int, int, bytes]] = {}
    asked = ((statements.GET_SPANS, (rollout, attempt, bucket)) for attempt, bucket in buckets)
    for (attempt, _), rows in zip(buckets, read_all(connection, asked), strict=True):
        for span_id, partition, offset, body in rows:
            known = first.get((attempt, span_id))
            if known is None or (partition, offset) < known[:2]:
                first[attempt, span_id] = partition, offset, body
    return [reading.span(*found) for found in first.values()]


def count_spans(connection: Connection) -> int:
    """Reads the key of every span: about a second for 100,000 of them."""
    total = 0
    for attempts in _attempts(connection):
        asked = [
            (statements.SPAN_KEYS, (rollout, attempt, bucket))
            for (rollout, attempt), buckets in attempts.items()
            for bucket in buckets
        ]
        seen: dict[tuple[str, str], set[str]] = {}
        for (_, (rollout, attempt, _)), rows in zip(asked, read_all(connection, asked), strict=True):
            seen.setdefault((rollout, attempt), set()).update(span_id for (span_id,) in rows)
        total += sum(map(len, seen.values()))
    return total


def _attempts(connection: Connection) -> Iterator[dict[tuple[str, str], list[int]]]:
    """The buckets of all attempts, some attempts at a time. The rows of one rollout come one after the other."""
    attempts: dict[tuple[str, str], list[int]] = {}
    for rows in read_all(connection, [(statements.ALL_SPAN_BUCKETS, ())]):
        for rollout, attempt, bucket in rows:
            if len(attempts) >= _ATTEMPTS_AT_ONCE and (rollout, attempt) not in attempts:
                yield attempts
                attempts = {}
            attempts.setdefault((rollout, attempt), []).append(bucket)
    yield attempts
