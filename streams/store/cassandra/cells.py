"""Events and their queried fields as cells, and the timestamps they are written with. Pure.

Cassandra keeps, cell by cell, the value with the greater timestamp, and of two with the same timestamp the greater
value. So a timestamp says which event is newer, and a cell begins with a *rank* that decides between two events of
one timestamp: the two always differ in it, and all cells of a row begin with the same one. The rank's length is told
at the end of the cell, where it decides nothing.

Timestamps follow two rules. A row whose event carries a version of its own (rollouts, triplets) is written at the
topic generation's base plus eight times that version, plus one; what is known by its time alone (workers, resources,
batches, rejects, activity, spans) at that time in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import orjson

from agl_stream.errors import SettingError
from agl_stream.schemas import events
from agl_stream.schemas.codec import compiled_reader, compiled_writer
from agl_stream.schemas.events import Event
from agl_stream.schemas.foreign import resolving_reader

_GREATEST = (1 << 63) - 1
_LEAST = -_GREATEST
"""The least 64-bit number of all means "no timestamp" to Cassandra."""
NEVER = _LEAST
_LONGEST_RANK = 4000
_LONGEST_KEY = 1000
_SPANS_TOTAL_BITS = 24


def body_of(event_type: str, event: Event) -> bytes:
    """The event in Avro, with the number of its schema's version in front."""
    pieces = [_version_byte(event_type)]
    compiled_writer(event_type)(event, pieces)
    return b"".join(pieces)


def body_of_record(event_type: str, record: Any) -> bytes:
    """As ``body_of``; a record of the batch loop that says where its value holds the event is not encoded again."""
    body_at = getattr(record, "body_at", -1)
    if body_at < 0:
        return body_of(event_type, record.event)
    return _version_byte(event_type) + record.value[body_at:]


def event_of(event_type: str, body: bytes) -> Event:
    """The event in what ``body_of`` made, now or by an earlier release. SettingError for a later release's."""
    return _reader(event_type, body[0])(body, 1)[0]


def cell(rank: bytes, content: bytes) -> bytes:
    rank = rank[:_LONGEST_RANK]
    return rank + content + len(rank).to_bytes(2, "big")


def content_of(stored: bytes) -> bytes:
    """What ``cell`` was given."""
    return stored[int.from_bytes(stored[-2:], "big") : -2]


def rank_by_place(offset: int) -> bytes:
    """Of two records the one that came first on the log is the greater."""
    return (_GREATEST - offset).to_bytes(8, "big")


def rank_by_names(*names: str) -> bytes:
    """As the names compare, one after the other."""
    return b"".join(name.encode() + b"\0" for name in names)


def head(fields: Sequence[Any]) -> bytes:
    """Fields as JSON. Numbers that are not finite become null."""
    return orjson.dumps(fields)


def key(text: str) -> str:
    """The text as part of a key. Cassandra refuses an empty key and one over 64 KB, and the log may hold any text, so
    those go by their hash; who needs the text finds it in the event."""
    if text and len(text) <= _LONGEST_KEY:
        return text
    return "\0" + sha256(text.encode()).hexdigest()


def of_version(base: int, version: int) -> int:
    """Timestamp of a mutable row by the version that its event carries."""
    return _held(base + max(version, 0) * 8 + 1)


def of_revision(base: int, revision: int, spans_total: int) -> int:
    """Timestamp of triplets: revision first, then the number of spans they were made from."""
    spans = min(max(spans_total, 0), (1 << _SPANS_TOTAL_BITS) - 1)
    return of_version(base, (max(revision, 0) << _SPANS_TOTAL_BITS) | spans)


def of_time(time_us: int) -> int:
    """Timestamp of what is known by its time alone."""
    return time_us if time_us >= _LEAST else _LEAST


def _held(timestamp: int) -> int:
    return min(max(timestamp, _LEAST), _GREATEST)


@cache
def _version_byte(event_type: str) -> bytes:
    return bytes([len(events.history(event_type))])


@cache
def _reader(event_type: str, version: int) -> Callable[[bytes, int], tuple[Event, int]]:
    known = events.history(event_type)
    if version > len(known):
        raise SettingError(
            f"the state store holds {event_type} in version {version}, this version of agl-stream knows up to "
            f"{len(known)}; use the newer version"
        )
    if version == len(known):
        return compiled_reader(event_type)
    return resolving_reader(known[version - 1], known[-1])
