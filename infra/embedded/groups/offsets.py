"""Committed consumer offsets, durable in one journal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from agl_stream.infra.embedded.storage import Journal


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class OffsetKey(NamedTuple):
    topic: str
    partition: int


class OffsetStore:
    """Offsets by group. The journal holds the last words; it is rewritten when most of it is history."""

    def __init__(self, path: Path) -> None:
        """Load the journal; raises DamagedFile."""
        self._groups: dict[str, dict[OffsetKey, Committed]] = {}
        self._journal = Journal(path)
        for group, topic, partition, *committed in self._journal.load():
            if committed:
                self._groups.setdefault(group, {})[OffsetKey(topic, partition)] = Committed(*committed)
            else:
                self._drop(group, OffsetKey(topic, partition))
        self._rewrite()

    def _rewrite(self) -> None:
        self._journal.rewrite(
            [group, *key, *committed] for group, offsets in self._groups.items() for key, committed in offsets.items()
        )

    def _rewrite_if_mostly_history(self) -> None:
        if self._journal.mostly_history:
            self._rewrite()

    def commit(self, group: str, offsets: Iterable[tuple[OffsetKey, int, int, str]]) -> None:
        """Store (key, offset, leader epoch, metadata) rows; on disk when this returns. Raises OSError."""
        now_ms = time.time_ns() // 1_000_000
        rows = [(key, Committed(offset, epoch, metadata, now_ms)) for key, offset, epoch, metadata in offsets]
        self._journal.append([group, *key, *committed] for key, committed in rows)
        self._groups.setdefault(group, {}).update(rows)
        self._rewrite_if_mostly_history()

    def of(self, group: str) -> dict[OffsetKey, Committed]:
        """A group's offsets; a live view, not to be changed."""
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        return list(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def delete(self, group: str, keys: Iterable[OffsetKey] | None = None) -> None:
        """Forget a group, or some of its partitions."""
        present = self._groups.get(group, {})
        dropped = [key for key in (list(present) if keys is None else keys) if key in present]
        if dropped:
            self._journal.append([group, *key] for key in dropped)
            for key in dropped:
                self._drop(group, key)
            self._rewrite_if_mostly_history()

    def delete_topic(self, topic: str) -> None:
        for group, offsets in list(self._groups.items()):
            self.delete(group, [key for key in offsets if key.topic == topic])

    def _drop(self, group: str, key: OffsetKey) -> None:
        offsets = self._groups.get(group, {})
        offsets.pop(key, None)
        if not offsets:
            self._groups.pop(group, None)

    def idle_since(self, before_ms: int) -> Iterator[str]:
        """Groups whose last commit is older than `before_ms`."""
        for group, offsets in list(self._groups.items()):
            if all(committed.committed_at_ms < before_ms for committed in offsets.values()):
                yield group

    def flush(self) -> None:
        self._journal.flush()

    def close(self) -> None:
        self._rewrite()
        self._journal.close()
