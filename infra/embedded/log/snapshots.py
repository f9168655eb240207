"""Snapshots of producer states: so that a start need not read the whole log to know who wrote what.

`<offset>.snapshot` is the state after every batch below the offset. Like an index it is never needed: one that is
torn or damaged is left out, and the state is made from an older one and the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log.producer_state import ProducerStates
from agl_stream.infra.embedded.seal import seal, unseal

logger = logging.getLogger(__name__)

_KEPT = 2


def _path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:020d}.snapshot"


def save(folder: Path, offset: int, states: ProducerStates) -> None:
    """Write the state at `offset` and drop all but the last two. Raises OSError."""
    disk.write_whole(_path(folder, offset), seal(json.dumps(states.snapshot()).encode()), durable=False)
    for old in _offsets(folder)[_KEPT:]:
        disk.remove(_path(folder, old))


def load(folder: Path, end_offset: int) -> tuple[int, ProducerStates]:
    """The newest usable state at or below `end_offset` and its offset; (0, no producers) when there is none.

    Newer ones are removed: they speak of batches that are gone.
    """
    for offset in _offsets(folder):
        if offset > end_offset:
            disk.remove(_path(folder, offset))
            continue
        states = _read(_path(folder, offset))
        if states is not None:
            return offset, states
    return 0, ProducerStates()


def _offsets(folder: Path) -> list[int]:
    """Newest first."""
    return sorted(_numbers(folder), reverse=True)


def _numbers(folder: Path) -> Iterator[int]:
    for path in folder.glob("*.snapshot"):
        if path.stem.isdigit():
            yield int(path.stem)


def _read(path: Path) -> ProducerStates | None:
    data = path.read_bytes()
    payload = data if data.startswith(b"{") else unseal(data)  # format 1 had no checksum
    try:
        if payload is not None:
            return ProducerStates.restore(json.loads(payload))
    except (ValueError, KeyError, TypeError):
        pass
    logger.warning("%s: torn or damaged producer snapshot, going on from an older one", path)
    return None
