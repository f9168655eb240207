"""Committed consumer offsets, durable in one journal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from agl_stream.infra.embedded.journal import Journal

_SEEN_INTERVAL_MS = 3_600_000
"""How precisely it is kept when a group last had a member: offsets are kept for days after that."""


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class OffsetKey(NamedTuple):
    topic: str
    partition: int


class OffsetStore:
    """Offsets by group. The journal holds the last words; it is rewritten when most of it is history.

    Three kinds of entry: group, topic, partition and what was committed; group, topic, partition alone for a
    deletion; group and a time for "had members then".
    """

    def __init__(self, path: Path) -> None:
        """Load the journal; raises DamagedFile."""
        self._groups: dict[str, dict[OffsetKey, Committed]] = {}
        self._seen_ms: dict[str, int] = {}
        self._journal = Journal(path)
        for group, *rest in self._journal.load():
            if len(rest) == 1:
                self._seen_ms[group] = rest[0]
                continue
            topic, partition, *committed = rest
            if committed:
                self._groups.setdefault(group, {})[OffsetKey(topic, partition)] = Committed(*committed)
            else:
                self._drop(group, OffsetKey(topic, partition))
        self._journal.rewrite_if_mostly_history(self._entries())

    def _entries(self) -> Iterator[list[object]]:
        for group, offsets in self._groups.items():
            for key, committed in offsets.items():
                yield [group, *key, *committed]
        for group, seen_ms in self._seen_ms.items():
            yield [group, seen_ms]

    def rewrite(self) -> None:
        """Write everything anew, in the present format. Raises OSError."""
        self._journal.rewrite(self._entries())

    def commit(self, group: str, offsets: Iterable[tuple[OffsetKey, int, int, str]]) -> None:
        """Store (key, offset, leader epoch, metadata) rows. A kill loses none of them once this returns.

        Raises OSError; nothing is stored then.
        """
        now_ms = time.time_ns() // 1_000_000
        rows = [(key, Committed(offset, epoch, metadata, now_ms)) for key, offset, epoch, metadata in offsets]
        self._journal.append([group, *key, *committed] for key, committed in rows)
        self._groups.setdefault(group, {}).update(rows)
        self._journal.rewrite_if_mostly_history(self._entries())

    def of(self, group: str) -> dict[OffsetKey, Committed]:
        """A group's offsets; a live view, not to be changed."""
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        return list(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def delete(self, group: str, keys: Iterable[OffsetKey] | None = None) -> None:
        """Forget a group, or some of its partitions. Raises OSError; nothing is forgotten then."""
        present = self._groups.get(group, {})
        dropped = [key for key in (list(present) if keys is None else keys) if key in present]
        if dropped:
            self._journal.append([group, *key] for key in dropped)
            for key in dropped:
                self._drop(group, key)
            self._journal.rewrite_if_mostly_history(self._entries())

    def delete_topic(self, topic: str) -> None:
        for group, offsets in list(self._groups.items()):
            self.delete(group, [key for key in offsets if key.topic == topic])

    def _drop(self, group: str, key: OffsetKey) -> None:
        offsets = self._groups.get(group, {})
        offsets.pop(key, None)
        if not offsets:
            self._groups.pop(group, None)
            self._seen_ms.pop(group, None)

    def has_members(self, group: str, now_ms: int) -> None:
        """Take note that a group is in use: its retention begins when it no longer is. Raises OSError."""
        if group in self._groups and now_ms - self._seen_ms.get(group, 0) >= _SEEN_INTERVAL_MS:
            self._journal.append([[group, now_ms]])
            self._seen_ms[group] = now_ms

    def idle_since(self, before_ms: int) -> Iterator[str]:
        """Groups whose last commit, and last member, are older than `before_ms`."""
        for group, offsets in list(self._groups.items()):
            last_ms = max(committed.committed_at_ms for committed in offsets.values())
            if max(last_ms, self._seen_ms.get(group, 0)) < before_ms:
                yield group

    def flush(self) -> None:
        """Force every commit so far to disk. Blocks; safe in a thread. Raises OSError."""
        self._journal.flush()

    def close(self) -> None:
        self._journal.close()
