"""One transactional id: its producer, and the transaction that is open or was last."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import Any

from agl_stream.infra.embedded.groups.offsets import OffsetKey


class State(enum.StrEnum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


DECIDED = (State.COMMITTING, State.ABORTING)
"""The decision is in the journal and not yet carried out everywhere."""
SETTLED = (State.COMMITTED, State.ABORTED)


@dataclass(slots=True)
class Transaction:
    """What the coordinator knows of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    updated_ms: int = 0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[tuple[str, OffsetKey], tuple[int, int, str]] = field(default_factory=dict)
    started_ms: int = 0
    """When the open transaction began: its timeout goes on across restarts."""
    markers: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where the markers of the last transaction are. A power cut may take one that was not flushed."""
    timer: asyncio.TimerHandle | None = None

    def entry(self) -> list[Any]:
        """What the journal keeps."""
        return [
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.timeout_ms,
            self.state,
            self.updated_ms,
            sorted(self.partitions),
            [[group, *key, *committed] for (group, key), committed in self.offsets.items()],
            self.started_ms,
            [[*partition, offset] for partition, offset in sorted(self.markers.items())],
        ]

    @classmethod
    def from_entry(cls, entry: list[Any]) -> Transaction:
        """From the journal; the last two fields are not in folders of format 1."""
        name, producer_id, epoch, timeout_ms, state, updated_ms, partitions, offsets, *newer = entry
        started_ms, markers = newer if newer else (updated_ms, [])
        return cls(
            name,
            producer_id,
            epoch,
            timeout_ms,
            State(state),
            updated_ms,
            {(topic, number) for topic, number in partitions},
            {(group, OffsetKey(topic, number)): (*rest,) for group, topic, number, *rest in offsets},
            started_ms,
            {(topic, number): offset for topic, number, offset in markers},
        )

    def restore(self, entry: list[Any]) -> None:
        """Be again what entry() said, because what came after it could not be written."""
        before = self.from_entry(entry)
        for name in self.__slots__:
            if name != "timer":
                setattr(self, name, getattr(before, name))

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
