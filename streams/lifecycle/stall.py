"""Notices a consumer that is alive and does nothing: work waits, and no offset moves.

Judged against lag, never against silence: a quiet topic is no fault. The questions go over a connection of their own,
since the consumer under suspicion cannot be asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from agl_stream.errors import AglStreamError
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings

logger = logging.getLogger(__name__)

_LOOKS_PER_STALL = 6
_ANSWER_SECONDS = 5.0


class StallGuard:
    """Looks at a group's committed offsets a few times per ``stall_seconds``."""

    def __init__(self, settings: Settings, group: str, owned: Callable[[], list[tuple[str, int]]]) -> None:
        """``owned``: topic and partition of what this process is responsible for at the moment."""
        self._settings = settings
        self._group = group
        self._owned = owned
        self._client: Any = None
        self._committed: dict[tuple[str, int], int] = {}
        self._moved_at = time.monotonic()
        self._next_look = 0.0

    def look(self) -> None:
        """Raise AglStreamError when nothing has moved for ``stall_seconds`` although records wait. Blocks for a few
        round trips, at most some seconds; a broker that does not answer says nothing about this process."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._settings.stall_seconds / _LOOKS_PER_STALL
        owned = self._owned()
        if not owned:
            self._moved_at = now
            return
        try:
            committed, lag = self._ask(owned)
        except KafkaException as error:
            logger.info("the lag of %s is not known: %s", self._group, error.args[0].str())
            self._moved_at = now
            return
        if not lag or committed != self._committed:
            self._committed, self._moved_at = committed, now
        elif now - self._moved_at > self._settings.stall_seconds:
            raise AglStreamError(
                f"{self._group} stands still: {lag} records wait in its partitions and no offset has moved for "
                f"AGL_STREAM_STALL_SECONDS={self._settings.stall_seconds:g}"
            )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, owned: list[tuple[str, int]]) -> tuple[dict[tuple[str, int], int], int]:
        if self._client is None:
            self._client = Consumer(
                {"bootstrap.servers": self._settings.bootstrap_servers, "group.id": self._group},
                logger=client_logger("stall-guard"),
            )
        committed: dict[tuple[str, int], int] = {}
        lag = 0
        for partition in self._client.committed([TopicPartition(*place) for place in owned], timeout=_ANSWER_SECONDS):
            low, high = self._client.get_watermark_offsets(
                TopicPartition(partition.topic, partition.partition), timeout=_ANSWER_SECONDS, cached=False
            )
            at = max(partition.offset, low)
            committed[partition.topic, partition.partition] = at
            lag += max(high - at, 0)
        return committed, lag
