"""The port read literally: dicts, loops and sorting. What every store is compared with.

It is written from the docstrings of ``streams/store/port.py`` and shares no code with any store, so that a mistake
has to be made twice to stay unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agl_stream.errors import UsageError
from agl_stream.schemas.events import Event
from agl_stream.streams.ledger.core import Ledger, Settlement
from agl_stream.streams.store.port import ALL, Applicable, Condition, Page, Query

ROLLOUT_FIELDS = (
    *("rollout_id", "version", "status", "reason_code", "mode", "resources_id", "resources_version", "run_id"),
    *("group_id", "requested_at_us", "ended_at_us", "attempt_id", "attempt_number", "worker_id"),
)
SPAN_FIELDS = (
    *("rollout_id", "attempt_id", "span_id", "sequence_id", "event_id", "occurred_at_us", "trace_id", "parent_id"),
    *("name", "kind", "status", "status_description", "started_at_us", "ended_at_us", "model", "resources_id"),
    *("resources_version", "finish_reason", "ids_missing", "reward"),
)
RESOURCE_FIELDS = ("resources_id", "version", "occurred_at_us", "run_id", "step")
WORKER_FIELDS = ("worker_id", "occurred_at_us", "role", "status")
REJECT_FIELDS = (
    *("source_topic", "source_partition", "source_offset", "reason_code", "rollout_id", "attempt_id"),
    *("rejected_by", "occurred_at_us"),
)

Value = Callable[[Event, str], Any]


def field_of(event: Event, name: str) -> Any:
    return event[name]


def rollout_field(event: Event, name: str) -> Any:
    """A field of the rollout; those of the attempt are the latest attempt's."""
    if name in ("attempt_id", "attempt_number", "worker_id"):
        attempts = sorted(event["attempts"], key=lambda attempt: attempt["attempt_number"])
        return attempts[-1][name] if attempts else None
    return event[name]


def ask(
    events: Iterable[Event],
    query: Query,
    fields: Sequence[str],
    order: Sequence[str],
    key: Sequence[str],
    value: Value = field_of,
) -> Page:
    """The page of ``events`` that answers ``query``; sorted by ``order`` unless it says otherwise, then by ``key``."""
    named = [condition.field for condition in (*query.conditions, *query.must)]
    for name in [*named, *([] if query.sort_by is None else [query.sort_by])]:
        if name not in fields:
            raise UsageError(f"no field {name!r}")

    def matches(event: Event, condition: Condition) -> bool:
        found = value(event, condition.field)
        if condition.contains is not None:
            return isinstance(found, str) and condition.contains in found
        if condition.within is not None:
            return found in condition.within
        return found == condition.exact

    def wanted(event: Event) -> bool:
        if not all(matches(event, condition) for condition in query.must):
            return False
        either = [matches(event, condition) for condition in query.conditions]
        return not either or (all(either) if query.logic == "and" else any(either))

    def rank(event: Event) -> list[tuple[bool, Any]]:
        leading = order if query.sort_by is None else [query.sort_by]
        values = [value(event, name) for name in (*leading, *key)]
        return [(found is not None, found) for found in values]

    chosen = sorted((event for event in events if wanted(event)), key=rank, reverse=query.sort_order == "desc")
    rest = chosen[query.offset :]
    items = rest if query.limit < 0 else rest[: query.limit]
    return Page(items, query.limit, query.offset, len(chosen))


class Model:
    """A StateStore in memory."""

    def __init__(self) -> None:
        self._rollouts: dict[str, Event] = {}
        self._spans: dict[tuple[str, str, str], Event] = {}
        self._activity: dict[str, int] = {}
        self._triplets: dict[str, Event] = {}
        self._resources: dict[tuple[str, int], Event] = {}
        self._workers: dict[str, Event] = {}
        self._batches: dict[tuple[str, int], Event] = {}
        self._rejects: dict[Any, Event] = {}
        self._applied: dict[tuple[str, int], int] = {}

    # writing

    def apply(self, records: Sequence[Applicable]) -> None:
        for record in records:
            keep = getattr(self, f"_keep_{record.topic}", None)
            if keep is not None:
                keep(record)
            place = record.topic, record.partition
            self._applied[place] = max(record.offset + 1, self._applied.get(place, 0))

    def _keep_rollouts(self, record: Applicable) -> None:
        _replace(self._rollouts, record.event["rollout_id"], record.event, lambda event: event["version"])

    def _keep_spans(self, record: Applicable) -> None:
        event = record.event
        placed = event | {"source_partition": record.partition, "source_offset": record.offset}
        self._spans.setdefault((event["rollout_id"], event["attempt_id"], event["span_id"]), placed)
        attempt = event["attempt_id"]
        self._activity[attempt] = max(event["occurred_at_us"], self._activity.get(attempt, event["occurred_at_us"]))

    def _keep_triplets(self, record: Applicable) -> None:
        event = record.event
        _replace(self._triplets, event["rollout_id"], event, lambda told: (told["revision"], told["spans_total"]))

    def _keep_resources(self, record: Applicable) -> None:
        key = record.event["resources_id"], record.event["version"]
        _replace(self._resources, key, record.event, lambda told: told["occurred_at_us"])

    def _keep_workers(self, record: Applicable) -> None:
        _replace(self._workers, record.event["worker_id"], record.event, lambda told: told["occurred_at_us"])

    def _keep_batches(self, record: Applicable) -> None:
        key = record.event["learner_id"], record.event["step"]
        _replace(self._batches, key, record.event, lambda told: (told["ended_at_us"], told["manifest_hash"]))

    def _keep_rejects(self, record: Applicable) -> None:
        event = record.event
        place = (event["source_topic"], event["source_partition"], event["source_offset"], event["reason_code"])
        key = place if event["source_offset"] >= 0 else event["event_id"]
        _replace(self._rejects, key, event, lambda told: told["occurred_at_us"])

    def restart(self, topic: str, partition: int) -> None:
        self._applied.pop((topic, partition), None)

    def close(self) -> None:
        """Nothing to let go of."""

    # reading

    def get_rollout(self, rollout_id: str) -> Event | None:
        return self._rollouts.get(rollout_id)

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]:
        return {name: self._rollouts[name] for name in rollout_ids if name in self._rollouts}

    def query_rollouts(self, query: Query = ALL) -> Page:
        order, key = ["requested_at_us"], ["rollout_id"]
        return ask(self._rollouts.values(), query, ROLLOUT_FIELDS, order, key, rollout_field)

    def count_rollouts_by_status(self, run_id: str | None = None, mode: str | None = None) -> dict[str, int]:
        return dict(
            Counter(
                event["status"]
                for event in self._rollouts.values()
                if run_id in (None, event["run_id"]) and mode in (None, event["mode"])
            )
        )

    def get_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Event]:
        return self.query_spans(rollout_id, attempt_id).items

    def query_spans(self, rollout_id: str, attempt_id: str | None = None, query: Query = ALL) -> Page:
        spans = [
            event
            for event in self._spans.values()
            if event["rollout_id"] == rollout_id and attempt_id in (None, event["attempt_id"])
        ]
        return ask(spans, query, SPAN_FIELDS, ["sequence_id", "started_at_us"], ["span_id", "attempt_id"])

    def get_triplets(self, rollout_id: str) -> Event | None:
        return self._triplets.get(rollout_id)

    def latest_resources(self, resources_id: str | None = None) -> Event | None:
        known = self._resources.values()
        if resources_id is None:
            names = ("occurred_at_us", "version", "resources_id")
            return max(known, key=lambda told: [told[name] for name in names], default=None)
        of_set = [told for told in known if told["resources_id"] == resources_id]
        return max(of_set, key=lambda told: told["version"], default=None)

    def get_resources(self, resources_id: str, version: int) -> Event | None:
        return self._resources.get((resources_id, version))

    def query_resources(self, query: Query = ALL) -> Page:
        return ask(self._resources.values(), query, RESOURCE_FIELDS, ["resources_id"], ["resources_id", "version"])

    def workers(self) -> list[Event]:
        return self.query_workers().items

    def query_workers(self, query: Query = ALL) -> Page:
        return ask(self._workers.values(), query, WORKER_FIELDS, ["worker_id"], ["worker_id"])

    def batches(self, learner_id: str | None = None) -> list[Event]:
        return [told for (learner, _), told in sorted(self._batches.items()) if learner_id in (None, learner)]

    def rejects_by_reason(self) -> dict[str, int]:
        return dict(Counter(told["reason_code"] for told in self._rejects.values()))

    def query_rejects(self, query: Query = ALL) -> Page:
        key = ["source_topic", "source_partition", "source_offset", "reason_code", "event_id"]
        return ask(self._rejects.values(), query, REJECT_FIELDS, ["occurred_at_us"], key)

    def applied_offset(self, topic: str, partition: int) -> int | None:
        return self._applied.get((topic, partition))

    def applied_offsets(self) -> dict[tuple[str, int], int]:
        return dict(self._applied)

    def last_activity(self, attempt_ids: Iterable[str]) -> dict[str, int]:
        return {name: self._activity[name] for name in attempt_ids if name in self._activity}

    def account(self, run_id: str | None = None) -> dict[str, Any]:
        told: dict[str, list[Settlement]] = {}
        runs: dict[str, set[str | None]] = {}
        for (learner, step), batch in self._batches.items():
            seen: set[str] = set()
            for settled in batch["rollouts"]:
                rollout_id = settled["rollout_id"]
                if rollout_id not in seen:
                    seen.add(rollout_id)
                    settlement = Settlement(learner, step, settled["outcome"], settled["reason_code"])
                    told.setdefault(rollout_id, []).append(settlement)
                    runs.setdefault(rollout_id, set()).add(batch["run_id"])
        ledger = Ledger()
        for rollout_id, event in self._rollouts.items():
            if event["mode"] not in ("val", "test") and run_id in (None, event["run_id"]):
                settlements = told.get(rollout_id, [])
                ledger.add(rollout_id, event["run_id"], event["status"], event["reason_code"], settlements)
        for rollout_id in told.keys() - self._rollouts.keys():
            if run_id is None or run_id in runs[rollout_id]:
                ledger.add_unrequested(rollout_id)
        return ledger.result()

    def counts(self) -> dict[str, int]:
        attempts = (rollout_field(event, "attempt_number") or 0 for event in self._rollouts.values())
        return {
            "rollouts": len(self._rollouts),
            "attempts": sum(attempts),
            "spans": len(self._spans),
            "triplets": len(self._triplets),
            "resources": len(self._resources),
            "workers": len(self._workers),
            "batches": len(self._batches),
            "rejects": len(self._rejects),
        }


def _replace(kept: dict[Any, Event], key: Any, event: Event, rank: Callable[[Event], Any]) -> None:
    """Keep ``event`` under ``key`` unless what is there ranks as high."""
    if key not in kept or rank(event) > rank(kept[key]):
        kept[key] = event
