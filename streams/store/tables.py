"""What may be asked of each kind of row, and what is wrong with a question: the same for every database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agl_stream.errors import UsageError
from agl_stream.streams.store.port import SPAN_FIELDS, Query


@dataclass(frozen=True)
class Table:
    """What may be asked of a table: ``fields`` may be filtered and sorted, ``key`` breaks ties."""

    name: str
    fields: frozenset[str]
    key: tuple[str, ...]
    order: tuple[str, ...]


def table(name: str, fields: str, key: str, order: str) -> Table:
    """A table from space-separated lists."""
    return Table(name, frozenset(fields.split()), tuple(key.split()), tuple(order.split()))


ROLLOUTS = table(
    "rollouts",
    "rollout_id version status reason_code mode resources_id resources_version run_id group_id requested_at_us "
    "ended_at_us attempt_id attempt_number worker_id",
    key="rollout_id",
    order="requested_at_us",
)
SPANS = table("spans", " ".join(SPAN_FIELDS), key="span_id attempt_id", order="sequence_id started_at_us")
RESOURCES = table(
    "resources", "resources_id version occurred_at_us run_id step", key="resources_id version", order="resources_id"
)
WORKERS = table("workers", "worker_id occurred_at_us role status", key="worker_id", order="worker_id")
REJECTS = table(
    "rejects",
    "source_topic source_partition source_offset reason_code rollout_id attempt_id rejected_by occurred_at_us",
    key="source_topic source_partition source_offset reason_code event_id",
    order="occurred_at_us",
)


def checked_field(asked: Table, field: str) -> str:
    """The field; UsageError when the table cannot be asked by it."""
    if field not in asked.fields:
        raise UsageError(f"{asked.name} cannot be asked by {field!r}; fields are {', '.join(sorted(asked.fields))}")
    return field


def checked_value(field: str, value: Any) -> Any:
    """The value; UsageError when no field can be compared with it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"{field} can be compared with integers of at most 64 bits")
    if value is None or isinstance(value, str | int | float):
        return value
    raise UsageError(f"{field} can be compared with a text, a number or null, not with {type(value).__name__}")


def sorting(asked: Table, query: Query) -> list[str]:
    """The fields that rows are sorted by, all in the query's direction; UsageError for another direction."""
    if query.sort_order not in ("asc", "desc"):
        raise UsageError(f"sort_order is asc or desc, not {query.sort_order!r}")
    fields = [checked_field(asked, query.sort_by)] if query.sort_by is not None else list(asked.order)
    return fields + [field for field in asked.key if field not in fields]


def checked_logic(query: Query) -> str:
    """The query's logic; UsageError when it is neither and nor or."""
    if query.logic not in ("and", "or"):
        raise UsageError(f"filter logic is and or or, not {query.logic!r}")
    return query.logic
