"""The lifecycle's table: states by rollout_id, partition by partition, rebuilt from a changelog topic.

The processor writes the changelog (many records at once, waited for before anybody is told) and puts here what
stands in it. When partitions come to this process, ``catch_up`` reads the rest of their changelog; partitions that
stayed are read on from where they were, since somebody else may have held them in between.

Why not Faust's own table: it sends one changelog record a time, promises no order between the changelog and other
topics, and loses records on its way through a rebalance (queues are cleared when the flow resumes, and what was in
them has been read). A table that comes back incomplete would leave rollouts open for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from agl_stream.settings import Settings
from agl_stream.streams.lifecycle.state import RolloutState, load_state
from agl_stream.streams.log_tail import LogTail

_OFFSET_KEY = b"\x00next-offset"


class Part(Protocol):
    """One partition's states, and ``position``: the changelog offset from which they may be outdated."""

    position: int

    def get(self, rollout_id: str) -> RolloutState | None: ...
    def put(self, rollout_id: str, state: RolloutState, encoded: bytes) -> None: ...
    def load(self, key: bytes, encoded: bytes | None) -> None: ...
    def forget(self, rollout_id: str) -> None: ...
    def items(self) -> Iterator[tuple[str, RolloutState]]: ...
    def advance(self, position: int) -> None: ...
    def close(self) -> None: ...


class StateTable:
    """Not thread-safe; belongs to the thread that folds."""

    def __init__(self, settings: Settings, changelog_topic: str, open_part: Callable[[int], Part]) -> None:
        self._open_part = open_part
        self._parts: dict[int, Part] = {}
        self._tail = LogTail(settings, changelog_topic, name="lifecycle-state")

    def catch_up(self, partitions: Iterable[int]) -> None:
        """Own exactly these partitions, as the changelog has them now. Raises EngineUnreachable."""
        wanted = set(partitions)
        for number in self._parts.keys() - wanted:
            self._parts.pop(number).close()
        for number in wanted - self._parts.keys():
            self._parts[number] = self._open_part(number)
        self._tail.follow({number: part.position for number, part in self._parts.items()})
        self._tail.read_to_end(self._load)
        for number, part in self._parts.items():
            part.advance(self._tail.positions[number])

    def _load(self, message: Any) -> None:
        self._parts[message.partition()].load(message.key(), message.value())

    def owns(self, partition: int) -> bool:
        return partition in self._parts

    def get(self, rollout_id: str, partition: int) -> RolloutState | None:
        return self._parts[partition].get(rollout_id)

    def put(self, rollout_id: str, partition: int, state: RolloutState, encoded: bytes, offset: int) -> None:
        """Keep a state that stands in the changelog at or before ``offset``."""
        part = self._parts[partition]
        part.put(rollout_id, state, encoded)
        part.advance(offset + 1)

    def forget(self, rollout_id: str, partition: int, offset: int) -> None:
        """Drop a state whose tombstone stands in the changelog at or before ``offset``."""
        part = self._parts[partition]
        part.forget(rollout_id)
        part.advance(offset + 1)

    def items(self) -> Iterator[tuple[str, int, RolloutState]]:
        for number, part in self._parts.items():
            for rollout_id, state in part.items():
                yield rollout_id, number, state

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts.clear()
        self._tail.close()


class MemoryPart:
    """A dict that holds bytes after a recovery, and states once they have been looked at."""

    def __init__(self) -> None:
        self.position = 0
        self._states: dict[str, RolloutState | bytes] = {}

    def get(self, rollout_id: str) -> RolloutState | None:
        found = self._states.get(rollout_id)
        if isinstance(found, bytes):
            found = self._states[rollout_id] = load_state(found)
        return found

    def put(self, rollout_id: str, state: RolloutState, encoded: bytes) -> None:
        self._states[rollout_id] = state

    def load(self, key: bytes, encoded: bytes | None) -> None:
        if encoded is None:
            self._states.pop(key.decode(), None)
        else:
            self._states[key.decode()] = encoded

    def forget(self, rollout_id: str) -> None:
        self._states.pop(rollout_id, None)

    def items(self) -> Iterator[tuple[str, RolloutState]]:
        for rollout_id in list(self._states):
            state = self.get(rollout_id)
            assert state is not None
            yield rollout_id, state

    def advance(self, position: int) -> None:
        self.position = max(self.position, position)

    def close(self) -> None:
        self._states.clear()


class RocksPart:
    """A RocksDB folder, for more open rollouts than memory holds; kept over restarts with its position, which is
    written after the states, so that after a crash some are read again and none is missed."""

    def __init__(self, folder: Path) -> None:
        from rocksdict import Options, Rdict

        folder.parent.mkdir(parents=True, exist_ok=True)
        self._db: Any = Rdict(str(folder), Options(raw_mode=True))
        self.position = int(self._db.get(_OFFSET_KEY) or b"0")

    def get(self, rollout_id: str) -> RolloutState | None:
        found = self._db.get(rollout_id.encode())
        return None if found is None else load_state(found)

    def put(self, rollout_id: str, state: RolloutState, encoded: bytes) -> None:
        self._db[rollout_id.encode()] = encoded

    def load(self, key: bytes, encoded: bytes | None) -> None:
        if encoded is None:
            self._db.delete(key)
        else:
            self._db[key] = encoded

    def forget(self, rollout_id: str) -> None:
        self._db.delete(rollout_id.encode())

    def items(self) -> Iterator[tuple[str, RolloutState]]:
        for key, value in self._db.items():
            if key != _OFFSET_KEY:
                yield key.decode(), load_state(value)

    def advance(self, position: int) -> None:
        if position > self.position:
            self.position = position
            self._db[_OFFSET_KEY] = str(position).encode()

    def close(self) -> None:
        self._db.close()


def open_table(settings: Settings, changelog_topic: str, folder: Path) -> StateTable:
    """The table of the setting ``lifecycle_store``; RocksDB keeps its files below ``folder``."""
    if settings.lifecycle_store == "rocksdb":
        return StateTable(settings, changelog_topic, lambda number: RocksPart(folder / f"state-{number}"))
    return StateTable(settings, changelog_topic, lambda number: MemoryPart())
