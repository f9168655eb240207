"""The lifecycle's Faust table, read and written by partition.

Faust recovers the table from its changelog and moves it with the partitions. Writing goes past Faust: the processor
writes the changelog itself, many records at once, and waits for them before it tells anybody (Faust's table sends
one record a time and promises no order between the changelog and other topics). What stands in the changelog is then
put here, together with its offset, so that a later recovery does not read it again.

The attributes of Faust that this uses (a store's ``data``, ``_key_partition`` and ``_db_for_partition``, the
recovery's ``active_offsets``) belong to the pinned version; they are touched nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faust.types import TP

from agl_stream.streams.lifecycle.state import RolloutState, load_state


class _FaustTable:
    """What both stores share: knowing the partitions that are ours, and the offsets that need no recovery."""

    def __init__(self, app: Any, table: Any) -> None:
        self._app = app
        self._store = table.data
        self._changelog: str = table.changelog_topic.get_topic_name()

    def owns(self, partition: int) -> bool:
        """Whether this process folds the partition's rollouts (a standby copy is not ours)."""
        return TP(self._changelog, partition) in self._app.assignor.assigned_actives()

    def _stands_at(self, partition: int, offset: int) -> None:
        if offset >= 0:
            changelog = TP(self._changelog, partition)
            offsets = self._app.tables.recovery.active_offsets
            if offset > offsets.get(changelog, -1):
                offsets[changelog] = offset
            self._store.set_persisted_offset(changelog, offset)


class MemoryTable(_FaustTable):
    """Over ``memory://``: a dict that holds bytes after a recovery and states once they have been looked at."""

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        key = rollout_id.encode()
        value = self._store.data.get(key)
        if isinstance(value, bytes):
            value = self._store.data[key] = load_state(value)
        return value

    def put(self, rollout_id: str, partition: int, state: RolloutState, encoded: bytes, offset: int) -> None:
        key = rollout_id.encode()
        self._store.data[key] = state
        self._store._key_partition[key] = partition
        self._stands_at(partition, offset)

    def forget(self, rollout_id: str, partition: int, offset: int) -> None:
        key = rollout_id.encode()
        self._store.data.pop(key, None)
        self._store._key_partition.pop(key, None)
        self._stands_at(partition, offset)

    def items(self) -> Iterator[tuple[str, int, RolloutState]]:
        for key, partition in list(self._store._key_partition.items()):
            rollout_id = key.decode()
            if self.owns(partition) and (state := self.get(rollout_id, partition)) is not None:
                yield rollout_id, partition, state


class RocksTable(_FaustTable):
    """Over ``rocksdb://``: one database file per partition, for more open rollouts than memory holds."""

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        value = self._store._db_for_partition(partition).get(rollout_id.encode())
        return None if value is None else load_state(bytes(value))

    def put(self, rollout_id: str, partition: int, state: RolloutState, encoded: bytes, offset: int) -> None:
        self._store._db_for_partition(partition).put(rollout_id.encode(), encoded)
        self._stands_at(partition, offset)

    def forget(self, rollout_id: str, partition: int, offset: int) -> None:
        self._store._db_for_partition(partition).delete(rollout_id.encode())
        self._stands_at(partition, offset)

    def items(self) -> Iterator[tuple[str, int, RolloutState]]:
        for partition, db in list(self._store._dbs.items()):
            if not self.owns(partition):
                continue
            for key, value in self._store._visible_items(db):
                yield bytes(key).decode(), partition, load_state(bytes(value))


def table_of(app: Any, table: Any) -> MemoryTable | RocksTable:
    """The view that fits the table's store."""
    return MemoryTable(app, table) if table.data.url.scheme == "memory" else RocksTable(app, table)
