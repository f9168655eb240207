"""The state store's port: what readers may ask and what materialisers write, whichever database holds it.

Answers are events as plain dicts, keyed as in the .avsc: a rollout is its latest RolloutStateChanged, a worker
its latest WorkerHeartbeat, and so on. Writes are idempotent and order-free: applying any events again, or in any
order that the log's partitions allow, leads to the same state. Methods block and may be called from any thread;
many processes may read while one or more write. Each raises EngineUnreachable when the database does not answer.

Of several events of one key, this one is kept, whole:

- a rollout: the greatest version; the fold gives a version one content, and all versions of a rollout the run and
  the time of its request
- triplets: the greatest (revision, spans_total)
- a worker, a version of resources, a reject (same place and reason): the latest occurred_at_us
- a training step: the greatest (ended_at_us, manifest_hash)
- a span: its writer gives a key one content; of several deliveries the earliest place is kept
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agl_stream.schemas.events import Event


class Applicable(Protocol):
    """A decoded record of the log, as the batch consumer loop makes them."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def event(self) -> Event: ...


@dataclass(frozen=True)
class Condition:
    """A test on one field, exactly one kind: equality (None matches null), membership (as equality with one of
    them), or substring (case counts; what is no text contains nothing)."""

    field: str
    exact: Any = None
    within: Sequence[Any] | None = None
    contains: str | None = None


@dataclass(frozen=True)
class Query:
    """Which rows, in which order, how many.

    ``conditions`` are joined by ``logic`` (none: all rows, for "or" too), ``must`` are ANDed in any case. Null sorts
    before everything, text sorts by code points. Ties are broken by the row's key, so that pages do not overlap;
    descending is ascending reversed, ties included. ``limit`` -1: no limit.
    """

    conditions: tuple[Condition, ...] = ()
    logic: Literal["and", "or"] = "and"
    must: tuple[Condition, ...] = ()
    sort_by: str | None = None
    sort_order: Literal["asc", "desc"] = "asc"
    limit: int = -1
    offset: int = 0


@dataclass(frozen=True)
class Page:
    """Part of an answer; ``total`` counts the rows without limit and offset."""

    items: list[Event]
    limit: int
    offset: int
    total: int

    def __iter__(self) -> Iterator[Event]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


ALL = Query()

SPAN_FIELDS = frozenset(
    (
        *("rollout_id", "attempt_id", "span_id", "trace_id", "parent_id", "sequence_id", "event_id", "occurred_at_us"),
        *("name", "kind", "status", "status_description", "started_at_us", "ended_at_us", "reward"),
        *("model", "resources_id", "resources_version", "finish_reason", "ids_missing"),
    )
)
"""What a query may name of a span: neither bodies nor structures nor token ids and logprobs."""


class StateReader(Protocol):
    """Questions. Fields that a query may name are listed with each method; another raises UsageError."""

    def get_rollout(self, rollout_id: str) -> Event | None:
        """The rollout's latest state, or None when it is not known (yet)."""
        ...

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]:
        """The known ones among these."""
        ...

    def query_rollouts(self, query: Query = ALL) -> Page:
        """Rollouts, by default in order of request. Fields: rollout_id, version, status, reason_code, mode,
        resources_id, resources_version, run_id, group_id, requested_at_us, ended_at_us, and attempt_id,
        attempt_number, worker_id of the latest attempt."""
        ...

    def count_rollouts_by_status(self, run_id: str | None = None, mode: str | None = None) -> dict[str, int]:
        """status -> how many; statuses without rollouts are left out."""
        ...

    def get_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Event]:
        """All spans in order of sequence_id, then start. Each event also has ``source_partition`` and
        ``source_offset``, its place in the spans topic."""
        ...

    def query_spans(self, rollout_id: str, attempt_id: str | None = None, query: Query = ALL) -> Page:
        """As get_spans, with conditions. Fields: SPAN_FIELDS. Ties are broken by span_id, then attempt_id."""
        ...

    def get_triplets(self, rollout_id: str) -> Event | None:
        """The latest revision of the rollout's TripletsJoined."""
        ...

    def latest_resources(self, resources_id: str | None = None) -> Event | None:
        """The greatest version of one set; without an id, what was published last of all: the greatest
        (occurred_at_us, version, resources_id)."""
        ...

    def get_resources(self, resources_id: str, version: int) -> Event | None:
        """One version."""
        ...

    def query_resources(self, query: Query = ALL) -> Page:
        """Fields: resources_id, version, occurred_at_us, run_id, step."""
        ...

    def workers(self) -> list[Event]:
        """The latest heartbeat of every worker, by worker_id."""
        ...

    def query_workers(self, query: Query = ALL) -> Page:
        """Fields: worker_id, occurred_at_us, role, status."""
        ...

    def batches(self, learner_id: str | None = None) -> list[Event]:
        """Manifests of training steps, by learner and step."""
        ...

    def rejects_by_reason(self) -> dict[str, int]:
        """reason_code -> how many records; one rejected twice for the same reason counts once."""
        ...

    def query_rejects(self, query: Query = ALL) -> Page:
        """Rejects, by default oldest first. Fields: source_topic, source_partition, source_offset, reason_code,
        rollout_id, attempt_id, rejected_by, occurred_at_us. Ties are broken by place, reason, event_id."""
        ...

    def applied_offset(self, topic: str, partition: int) -> int | None:
        """Offset of the next record to apply (everything before it is visible), None when nothing was applied.
        ``topic`` without namespace. Records applied again do not lower it; only ``restart`` does."""
        ...

    def applied_offsets(self) -> dict[tuple[str, int], int]:
        """All of them, by (topic, partition)."""
        ...

    def last_activity(self, attempt_ids: Iterable[str]) -> dict[str, int]:
        """attempt_id -> microseconds of its latest span; attempts without spans are left out."""
        ...

    def account(self, run_id: str | None = None) -> dict[str, Any]:
        """What became of the training rollouts (all but those of mode val and test) of one run, or of all:
        see ``streams.ledger.core.Ledger``."""
        ...

    def counts(self) -> dict[str, int]:
        """Rows of rollouts, attempts, spans, triplets, resources, workers, batches and rejects."""
        ...


class StateWriter(Protocol):
    """Used by materialisers only."""

    def apply(self, records: Sequence[Applicable]) -> None:
        """Apply records of any mix of topics and note their offsets, all or nothing, durable on return.

        Records of one partition come in offset order. Topics that the store does not keep are only counted as
        applied.
        """
        ...

    def restart(self, topic: str, partition: int) -> None:
        """Forget the applied offset: the topic was made anew, and its records are numbered from 0 again. What came
        from them stays."""
        ...


class StateStore(StateReader, StateWriter, Protocol):
    """Both sides, and an end."""

    def close(self) -> None:
        """Let go of the database. Calls in other threads must have ended."""
        ...


def latest_attempt(rollout: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The attempt that decides: the one with the greatest number."""
    attempts: Sequence[Mapping[str, Any]] = rollout["attempts"]
    return max(attempts, key=_number, default=None)


def _number(attempt: Mapping[str, Any]) -> int:
    return attempt["attempt_number"]
