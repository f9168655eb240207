"""Which attempts are alive by their spans although nobody has said so. Pure: no clock, no store.

A runner reports that its agent has started; a foreign tracer does not, and an attempt given up as unresponsive
may speak again. The first span of an attempt is therefore looked at a moment later: when the store still does not
know the attempt as running or ended, the sink reports it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id

SETTLE_SECONDS = 1.0
"""How long the report of a runner may take to reach the store."""
_TRIES = 5
_REMEMBERED = 100_000
_QUIET = frozenset({"preparing", "unresponsive", "unknown"})


@dataclass(slots=True)
class Sign:
    """The span that showed an attempt alive."""

    rollout_id: str
    attempt_id: str
    span_id: str
    occurred_at_us: int
    tries: int = 0


class ActivityWatch:
    """Remembers the latest 100,000 attempts it has seen spans of."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[tuple[float, Sign]] = deque()

    def on_span(self, event: Event, now_seconds: float) -> None:
        """A span was recorded; repetitions cost a look-up."""
        attempt_id = event["attempt_id"]
        if attempt_id in self._seen:
            return
        self._seen[attempt_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        sign = Sign(event["rollout_id"], attempt_id, event["span_id"], event["occurred_at_us"])
        self._waiting.append((now_seconds + SETTLE_SECONDS, sign))

    def on_rollout(self, event: Event) -> None:
        """A rollout changed: the next span of an unresponsive attempt is news again."""
        for attempt in event["attempts"]:
            if attempt["status"] == "unresponsive":
                self._seen.pop(attempt["attempt_id"], None)

    def due(self, now_seconds: float) -> list[Sign]:
        """The signs that have waited long enough; each is to be given to ``reports``."""
        due: list[Sign] = []
        while self._waiting and self._waiting[0][0] <= now_seconds:
            due.append(self._waiting.popleft()[1])
        return due

    def reports(self, signs: Iterable[Sign], rollouts: Mapping[str, Event], now_seconds: float) -> list[Event]:
        """AttemptStatusChanged events for those of ``signs`` that ``rollouts`` (by id, as the store knows them) does
        not show as running or ended. A rollout that is not known yet is asked for again, five times."""
        made: list[Event] = []
        for sign in signs:
            rollout = rollouts.get(sign.rollout_id)
            attempts = rollout["attempts"] if rollout is not None else ()
            attempt = next((known for known in attempts if known["attempt_id"] == sign.attempt_id), None)
            if attempt is None:
                sign.tries += 1
                if sign.tries < _TRIES:
                    self._waiting.append((now_seconds + SETTLE_SECONDS, sign))
            elif attempt["status"] in _QUIET:
                made.append(
                    {
                        "event_id": event_id("activity", sign.attempt_id, attempt["status"], sign.span_id),
                        "occurred_at_us": sign.occurred_at_us,
                        "rollout_id": sign.rollout_id,
                        "attempt_id": sign.attempt_id,
                        "attempt_number": attempt["attempt_number"],
                        "status": "running",
                    }
                )
        return made
