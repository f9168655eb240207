"""Reads the ``resources`` topic up to its end whenever the fold needs to know what exists."""

from __future__ import annotations

import logging
from typing import Any

from agl_stream.errors import DecodeError
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.lifecycle.effects import Source
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.log_tail import LogTail

logger = logging.getLogger(__name__)


class ResourceReader:
    """Not thread-safe; belongs to the thread that folds."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._codec = codec
        self._view = ResourceView()
        self._tail = LogTail(settings, settings.topic("resources"), name="lifecycle-resources")

    def view(self) -> ResourceView:
        """The view, holding everything that was acknowledged before this call.

        Blocks for a round trip, and while there is news to read. Raises EngineUnreachable when the broker does not
        answer within ``connect_timeout_seconds``.
        """
        if not self._tail.positions:
            self._tail.follow(dict.fromkeys(self._tail.partitions(), 0))
        self._tail.read_to_end(self._take)
        return self._view

    def close(self) -> None:
        self._tail.close()

    def _take(self, message: Any) -> None:
        if message.value() is None:
            return
        try:
            event_type, event = self._codec.decode(message.value(), message.headers())
        except DecodeError as problem:
            logger.warning("%s offset %d is skipped: %s", message.topic(), message.offset(), problem)
            return
        if event_type == "ResourcesPublished":
            place = Source("resources", message.partition(), message.offset(), message.timestamp()[1])
            self._view.published({**event, "occurred_at_us": place.time_of(event)})
