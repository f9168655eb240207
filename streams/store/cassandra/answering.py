"""Queries over rows that were fetched: which of them, in which order, how many. Pure.

Cassandra finds rows by their partition and nothing else; what a query asks beyond that is decided here, over the few
fields that queries may name. Measured, that costs no more than a secondary index would, and the writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from agl_stream.streams.store.port import Condition, Query
from agl_stream.streams.store.tables import Table, checked_field, checked_logic, checked_value, sorting

Row = Mapping[str, Any]
_R = TypeVar("_R", bound=Row)
_Test = Callable[[Row], bool]


def select(asked: Table, rows: Sequence[_R], query: Query) -> tuple[list[_R], int]:
    """The rows of the page, and how many there are without limit and offset. UsageError for a field that cannot be
    asked, also when there are no rows."""
    holds = _holding(asked, query)
    order = sorting(asked, query)
    found = [row for row in rows if holds(row)] if holds is not None else list(rows)
    found.sort(key=_sort_key(order), reverse=query.sort_order == "desc")
    end = None if query.limit < 0 else query.offset + query.limit
    return found[query.offset : end], len(found)


def named(query: Query, field: str) -> Collection[str | None] | None:
    """The values that a row of the answer has in ``field``, which holds text, for certain; None when it may have any.
    What is neither text nor null is left out: no row has it, and ``select`` says when it cannot be asked."""
    conditions = query.must + (query.conditions if query.logic == "and" else ())
    for condition in conditions:
        if condition.field == field and condition.contains is None:
            values = condition.within if condition.within is not None else (condition.exact,)
            return {value for value in values if value is None or isinstance(value, str)}
    return None


def still_meeting(asked: Table, rows: Iterable[_R], query: Query) -> list[_R]:
    """Those of ``rows``, read after they were selected, that have not changed out of the answer since."""
    holds = _holding(asked, query)
    return [row for row in rows if holds is None or holds(row)]


def _holding(asked: Table, query: Query) -> _Test | None:
    logic = checked_logic(query)
    must = [_test(asked, condition) for condition in query.must]
    tests = [_test(asked, condition) for condition in query.conditions]
    if logic == "or" and len(tests) > 1:
        must.append(lambda row: any(test(row) for test in tests))
    else:
        must += tests
    if not must:
        return None
    return must[0] if len(must) == 1 else lambda row: all(test(row) for test in must)


def _test(asked: Table, condition: Condition) -> _Test:
    field = checked_field(asked, condition.field)
    if (part := condition.contains) is not None:
        return lambda row: isinstance(row[field], str) and part in row[field]
    if condition.within is not None:
        values = {checked_value(field, value) for value in condition.within}
        return lambda row: row[field] in values
    exact = checked_value(field, condition.exact)
    return lambda row: row[field] == exact


def _sort_key(fields: Sequence[str]) -> Callable[[Row], Any]:
    pick = itemgetter(*fields)
    if len(fields) == 1:
        return lambda row: _null_first(pick(row))
    return lambda row: tuple(map(_null_first, pick(row)))


def _null_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value
