"""The schemas as files: every event type, its versions, and the current one.

``schemas/avsc/<event>/v<N>.avsc`` is the whole history of an event and is never edited once released; the
highest N is what producers write. Events travel through the code as plain dicts keyed as in the .avsc: the
hot loops handle tens of thousands a second, and the codec has checked them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
Schema: TypeAlias = dict[str, Any]

EVENT_TYPES = (
    "RolloutRequested",
    "ControlRequested",
    "AttemptDispatched",
    "AttemptStatusChanged",
    "SpanRecorded",
    "ResourcesPublished",
    "WorkerHeartbeat",
    "RolloutStateChanged",
    "TripletsJoined",
    "BatchTrained",
    "RecordRejected",
)


@cache
def history(event_type: str) -> tuple[Schema, ...]:
    """All versions of an event's schema, oldest first. Raises KeyError for an unknown event type."""
    if event_type not in EVENT_TYPES:
        raise KeyError(f"{event_type} is no event type; there are {', '.join(EVENT_TYPES)}")
    folder = resources.files("agl_stream.schemas").joinpath("avsc", _snake(event_type))
    versions = sorted(
        (int(m.group(1)), entry) for entry in folder.iterdir() if (m := re.fullmatch(r"v(\d+)\.avsc", entry.name))
    )
    return tuple(json.loads(entry.read_text(encoding="utf-8")) for _, entry in versions)


def current(event_type: str) -> Schema:
    """The schema producers write."""
    return history(event_type)[-1]


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
