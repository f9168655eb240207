"""The lifecycle without Kafka or Faust: events in, effects out. For tests and for replay over old offsets."""

from __future__ import annotations

from agl_stream.schemas.events import Event
from agl_stream.streams.lifecycle.effects import Effect, Source
from agl_stream.streams.lifecycle.fold import complete, fold
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState


class ReplayableLifecycle:
    """Folds events in the order given. ``ResourcesPublished`` may be fed as well: it becomes known to the requests
    that follow it."""

    def __init__(self) -> None:
        self.states: dict[str, RolloutState] = {}
        """rollout_id -> state."""
        self._resources = ResourceView()

    def feed(self, event_type: str, event: Event, source: Source) -> list[Effect]:
        """The effects of one event. An effect has the id that the live lifecycle gave it, so that the two can be
        compared event by event (versions are counted alike when the order of reading is alike)."""
        if event_type == "ResourcesPublished":
            self._resources.published({**event, "occurred_at_us": source.time_of(event)})
            return []
        event = complete(event_type, event, source)
        rollout_id = event["rollout_id"]
        before = self.states.get(rollout_id)
        after, effects = fold(before, event_type, event, source=source, resources=self._resources)
        if after is not None and after is not before:
            self.states[rollout_id] = after
        return effects
