"""What the parts of one step of the fold share: the event at hand, the resources, and the rejects it makes."""

from __future__ import annotations

from typing import NamedTuple

from agl_stream.producers import json_text
from agl_stream.schemas.events import Event
from agl_stream.streams.lifecycle.effects import Effect, Source, rejected
from agl_stream.streams.lifecycle.resources import ResourceView


class Input(NamedTuple):
    """An event and where it was read."""

    event_type: str
    event: Event
    source: Source


class Step:
    """Collects the effects of one step."""

    def __init__(self, resources: ResourceView) -> None:
        self.resources = resources
        self.effects: list[Effect] = []

    def reject(self, given: Input, reason_code: str, detail: str) -> None:
        """The event changes nothing, or not what it asked for; say so on the log."""
        event = given.event
        self.effects.append(
            rejected(
                given.source,
                reason_code,
                detail,
                at_us=event["occurred_at_us"],
                rollout_id=event["rollout_id"],
                attempt_id=event.get("attempt_id"),
            )
        )


def parses(text: str) -> bool:
    """Whether ``text`` is JSON of a depth that everybody can write again, also as a part of something larger."""
    try:
        json_text.loads(text)
    except ValueError:
        return False
    return True


def is_object(text: str) -> bool:
    """Whether ``text`` is a JSON object of such a depth."""
    try:
        return isinstance(json_text.loads(text), dict)
    except ValueError:
        return False
