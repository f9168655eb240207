"""Events to rows and back. A list of columns is written once and serves both directions."""

# ruff: noqa: S608 - statements are put together from this room's own names, values are always parameters

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import orjson

from agl_stream.schemas.events import Event
from agl_stream.streams.store.port import Applicable, latest_attempt

Row = tuple[Any, ...]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SPAN_FIELDS = _names(
    "rollout_id attempt_id span_id sequence_id event_id occurred_at_us trace_id parent_id name kind status "
    "status_description started_at_us ended_at_us model resources_id resources_version prompt_token_ids "
    "response_token_ids response_logprobs finish_reason ids_missing reward request response attributes events links "
    "resource"
)
SPAN_COLUMNS = (
    *SPAN_FIELDS,
    "producer_name",
    "producer_instance",
    "producer_version",
    "payload_ref",
    "source_partition",
    "source_offset",
)
_span_values = itemgetter(*SPAN_FIELDS)
_producer_values = itemgetter("name", "instance", "version")

CALL_FIELDS = _names(
    "span_id sequence_id prompt_token_ids response_token_ids response_logprobs reward resources_version "
    "finish_reason metadata"
)
_call_values = itemgetter(*CALL_FIELDS)

REJECT_FIELDS = _names(
    "source_topic source_partition source_offset source_key reason_code detail rollout_id attempt_id rejected_by "
    "event_id occurred_at_us payload payload_length producer"
)
_reject_values = itemgetter(*REJECT_FIELDS[:-1])


def insert(table: str, columns: Sequence[str], on_conflict: str) -> str:
    """An INSERT of named columns with its conflict clause."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) {on_conflict}"


def replace_when(columns: Sequence[str], key: Sequence[str], newer: str) -> str:
    """A conflict clause that replaces the whole row where ``newer`` holds."""
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes} WHERE {newer}"


def span_row(record: Applicable) -> Row:
    event = record.event
    reference = event["payload_ref"]
    return (
        *_span_values(event),
        *_producer_values(event["producer"]),
        None if reference is None else to_json(reference),
        record.partition,
        record.offset,
    )


def span_event(row: Sequence[Any]) -> Event:
    event: Event = dict(zip(SPAN_COLUMNS, row, strict=True))
    event["producer"] = {name: event.pop(f"producer_{name}") for name in ("name", "instance", "version")}
    event["payload_ref"] = None if event["payload_ref"] is None else orjson.loads(event["payload_ref"])
    return event


ROLLOUT_COLUMNS = _names(
    "rollout_id version status reason_code mode resources_id resources_version run_id group_id requested_at_us "
    "ended_at_us attempt_id attempt_number worker_id event"
)
_rollout_values = itemgetter(*ROLLOUT_COLUMNS[:11])


def rollout_row(event: Event) -> Row:
    attempt = latest_attempt(event) or {}
    return (
        *_rollout_values(event),
        attempt.get("attempt_id"),
        attempt.get("attempt_number"),
        attempt.get("worker_id"),
        to_json(event),
    )


TRIPLET_COLUMNS = _names(
    "rollout_id revision spans_total status reason_code mode run_id group_id reward content_hash occurred_at_us event"
)
_triplet_values = itemgetter(*TRIPLET_COLUMNS[:-1])


def triplets_row(event: Event) -> Row:
    """The header; the model calls are rows of ``triplet_calls``."""
    return (*_triplet_values(event), to_json({**event, "triplets": []}))


def call_rows(event: Event) -> list[Row]:
    return [(event["rollout_id"], position, *_call_values(call)) for position, call in enumerate(event["triplets"])]


def triplets_event(header: str, calls: Sequence[Row]) -> Event:
    event = orjson.loads(header)
    event["triplets"] = [dict(zip(CALL_FIELDS, call, strict=True)) for call in calls]
    return event


RESOURCES_COLUMNS = _names("resources_id version occurred_at_us run_id step event")
WORKER_COLUMNS = _names("worker_id occurred_at_us role status event")
BATCH_COLUMNS = _names("learner_id step run_id ended_at_us manifest_hash event")


def plain_row(columns: Sequence[str], event: Event) -> Row:
    """Fields of the event by name, and the event itself as JSON in the last column."""
    return (*(event[column] for column in columns[:-1]), to_json(event))


SETTLEMENT_COLUMNS = _names("rollout_id learner_id step attempt_id run_id outcome reason_code")


def settlement_rows(event: Event) -> list[Row]:
    learner_id, step, run_id = event["learner_id"], event["step"], event["run_id"]
    return [
        (told["rollout_id"], learner_id, step, told["attempt_id"], run_id, told["outcome"], told["reason_code"])
        for told in event["rollouts"]
    ]


REJECT_COLUMNS = ("reject_key", *REJECT_FIELDS)


def reject_row(event: Event) -> Row:
    if event["source_offset"] < 0:
        key = event["event_id"]
    else:
        key = f"{event['source_topic']}/{event['source_partition']}/{event['source_offset']}/{event['reason_code']}"
    return (key, *_reject_values(event), to_json(event["producer"]))


def reject_event(row: Sequence[Any]) -> Event:
    event: Event = dict(zip(REJECT_FIELDS, row, strict=True))
    event["producer"] = orjson.loads(event["producer"])
    return event


def to_json(value: Any) -> str:
    """JSON text. Numbers that are not finite become null, as JSON has none."""
    return orjson.dumps(value).decode()
