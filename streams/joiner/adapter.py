"""The adapters' port: relevant spans of one attempt in, training data out. Adapters are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agl_stream.schemas.events import Event
from agl_stream.streams.joiner.spans import SpanView


@dataclass(frozen=True)
class Refused:
    """A span that cannot be used, and why; it goes to the rejects."""

    span: SpanView
    reason_code: str
    detail: str


@dataclass(frozen=True)
class Adapted:
    """Triplets (dicts as in TripletsJoined) in order; ``last_reward`` of the spans, None when there is none.

    With a ``reason_code`` there are no triplets. ``detail`` may explain something without a reason.
    """

    triplets: list[Event] = field(default_factory=list)
    last_reward: float | None = None
    reason_code: str | None = None
    detail: str | None = None
    refused: list[Refused] = field(default_factory=list)


class Adapter(Protocol):
    """``name`` and ``version`` go into each TripletsJoined; change the version when the output changes."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...

    def adapt(self, spans: Sequence[SpanView]) -> Adapted:
        """Spans in any order, each span_id once."""
        ...
