"""Queries as SQL. Field names are looked up in a table's list, never pasted from the caller."""

# ruff: noqa: S608 - column names come from a Table, values are always parameters

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agl_stream.errors import UsageError
from agl_stream.streams.store.port import Condition, Query

_FEW = 500


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


def where(asked: Table, query: Query, fixed: Mapping[str, Any] | None = None) -> tuple[str, list[Any]]:
    """The WHERE clause (empty when all rows match) and its parameters; ``fixed`` are equalities ANDed in front."""
    values: list[Any] = []
    clauses = [f"{column} = ?" for column in fixed or ()]
    values += (fixed or {}).values()
    for group, joiner in ((query.must, " AND "), (query.conditions, f" {_joiner(query)} ")):
        parts = [_clause(asked, condition, values) for condition in group]
        if parts:
            clauses.append("(" + joiner.join(parts) + ")")
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), values


def order_and_limit(asked: Table, query: Query) -> str:
    """ORDER BY, LIMIT and OFFSET."""
    direction = {"asc": "ASC", "desc": "DESC"}.get(query.sort_order)
    if direction is None:
        raise UsageError(f"sort_order is asc or desc, not {query.sort_order!r}")
    columns = [_column(asked, query.sort_by)] if query.sort_by is not None else list(asked.order)
    columns += [column for column in asked.key if column not in columns]
    sorting = ", ".join(f"{column} {direction}" for column in columns)
    limits = "" if query.limit < 0 and not query.offset else f" LIMIT {int(query.limit)} OFFSET {int(query.offset)}"
    return f" ORDER BY {sorting}{limits}"


def also(query: Query, *conditions: Condition) -> Query:
    """The query with further conditions that must hold."""
    return replace(query, must=query.must + conditions)


def one_of(column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """The test that ``column`` is among ``values``, and its parameters; no limit on their number."""
    known = [_scalar(column, value) for value in values if value is not None]
    if len(known) <= _FEW:
        test, parameters = f"{column} IN ({', '.join('?' * len(known))})", known
    else:
        # one parameter for all; SQLite reads no text with a NUL in it from JSON, which is why few go by themselves
        test, parameters = f"{column} IN (SELECT value FROM json_each(?))", [json.dumps(known)]
    return (f"({test} OR {column} IS NULL)" if len(known) < len(values) else test), parameters


def _joiner(query: Query) -> str:
    if query.logic not in ("and", "or"):
        raise UsageError(f"filter logic is and or or, not {query.logic!r}")
    return query.logic.upper()


def _clause(asked: Table, condition: Condition, values: list[Any]) -> str:
    column = _column(asked, condition.field)
    if condition.contains is not None:
        values.append(condition.contains)
        return f"(typeof({column}) = 'text' AND instr({column}, ?) > 0)"
    if condition.within is not None:
        test, parameters = one_of(column, condition.within)
        values += parameters
        return test
    values.append(_scalar(condition.field, condition.exact))
    return f"{column} IS ?"


def _scalar(field: str, value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"{field} can be compared with integers of at most 64 bits")
    if value is None or isinstance(value, str | int | float):
        return value
    raise UsageError(f"{field} can be compared with a text, a number or null, not with {type(value).__name__}")


def _column(asked: Table, field: str) -> str:
    if field not in asked.fields:
        raise UsageError(f"{asked.name} cannot be asked by {field!r}; fields are {', '.join(sorted(asked.fields))}")
    return field
