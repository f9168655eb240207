"""Where a consumer group stands, asked of the broker over a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from agl_stream import connections, leaders
from agl_stream.errors import EngineUnreachable
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings

Place = tuple[str, int]
"""Full topic name and partition."""

_ANSWER_SECONDS = 5.0


class GroupOffsets:
    """Asks the broker for a group's offsets and the log's ends. Blocks; for one thread at a time."""

    def __init__(self, settings: Settings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._client: Any = None

    def ask(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        """Place -> (the next offset to read for the group, the log's end). Raises EngineUnreachable."""
        client = self._connect()
        asked = [TopicPartition(*place) for place in places]

        def question(seconds: float) -> dict[Place, tuple[int, int]]:
            answer: dict[Place, tuple[int, int]] = {}
            for found in leaders.raise_errors(client.committed(asked, timeout=seconds)):
                place = TopicPartition(found.topic, found.partition)
                low, high = client.get_watermark_offsets(place, timeout=seconds, cached=False)
                # below zero: nothing committed; below low: what was committed has been deleted since
                answer[found.topic, found.partition] = (max(found.offset, low), high)
            return answer

        try:
            return leaders.ask(client, {place.topic for place in asked}, question, _ANSWER_SECONDS)
        except KafkaException as error:
            raise EngineUnreachable(
                f"the broker at {self._settings.bootstrap_servers} does not tell the offsets of {self._group}: "
                f"{error.args[0].str()}"
            ) from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Any:
        if self._client is None:
            self._client = Consumer(
                {
                    **connections.librdkafka(self._settings),
                    "group.id": self._group,
                    "client.id": "agl-group-offsets",
                    "enable.auto.commit": False,
                },
                logger=client_logger("group-offsets"),
            )
        return self._client
