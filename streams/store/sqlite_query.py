"""Queries as SQL. Field names are looked up in a table's list, never pasted from the caller."""

# ruff: noqa: S608 - column names come from a Table, values are always parameters

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agl_stream.streams.store.port import Condition, Query
from agl_stream.streams.store.tables import Table, checked_field, checked_logic, checked_value, sorting

_FEW = 500


def where(asked: Table, query: Query, fixed: Mapping[str, Any] | None = None) -> tuple[str, list[Any]]:
    """The WHERE clause (empty when all rows match) and its parameters; ``fixed`` are equalities ANDed in front."""
    values: list[Any] = []
    clauses = [f"{column} = ?" for column in fixed or ()]
    values += (fixed or {}).values()
    for group, joiner in ((query.must, " AND "), (query.conditions, f" {checked_logic(query).upper()} ")):
        parts = [_clause(asked, condition, values) for condition in group]
        if parts:
            clauses.append("(" + joiner.join(parts) + ")")
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), values


def order_and_limit(asked: Table, query: Query) -> str:
    """ORDER BY, LIMIT and OFFSET."""
    columns = ", ".join(f"{column} {query.sort_order.upper()}" for column in sorting(asked, query))
    limits = "" if query.limit < 0 and not query.offset else f" LIMIT {int(query.limit)} OFFSET {int(query.offset)}"
    return f" ORDER BY {columns}{limits}"


def also(query: Query, *conditions: Condition) -> Query:
    """The query with further conditions that must hold."""
    return replace(query, must=query.must + conditions)


def one_of(column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """The test that ``column`` is among ``values``, and its parameters; no limit on their number."""
    known = [checked_value(column, value) for value in values if value is not None]
    if len(known) <= _FEW:
        test, parameters = f"{column} IN ({', '.join('?' * len(known))})", known
    else:
        # one parameter for all; SQLite reads no text with a NUL in it from JSON, which is why few go by themselves
        test, parameters = f"{column} IN (SELECT value FROM json_each(?))", [json.dumps(known)]
    return (f"({test} OR {column} IS NULL)" if len(known) < len(values) else test), parameters


def _clause(asked: Table, condition: Condition, values: list[Any]) -> str:
    column = checked_field(asked, condition.field)
    if condition.contains is not None:
        values.append(condition.contains)
        return f"(typeof({column}) = 'text' AND instr({column}, ?) > 0)"
    if condition.within is not None:
        test, parameters = one_of(column, condition.within)
        values += parameters
        return test
    values.append(checked_value(condition.field, condition.exact))
    return f"{column} IS ?"
