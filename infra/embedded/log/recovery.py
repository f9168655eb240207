"""Opening a partition's folder: from files that a kill or a power cut left in any state to a log that goes on."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.log import snapshots
from agl_stream.infra.embedded.log.batch import is_commit_marker
from agl_stream.infra.embedded.log.producer_state import ProducerStates
from agl_stream.infra.embedded.log.segment import Segment
from agl_stream.infra.embedded.seal import seal, unseal

logger = logging.getLogger(__name__)

SWAP = ".swap"
CLEANED = ".cleaned"


@dataclass(frozen=True, slots=True)
class CleanerMarks:
    """How far compaction is."""

    clean_below: int = 0
    """Below this offset no key occurs twice."""
    sparse_below: int = 0
    """Below this offset records may be missing. Written before they are, so never too low."""

    def save(self, folder: Path) -> None:
        disk.write_whole(folder / "cleaner", seal(json.dumps(asdict(self)).encode()))

    @classmethod
    def load(cls, folder: Path) -> CleanerMarks:
        """From the folder; raises DamagedFile."""
        data = _read(folder / "cleaner")
        return cls() if data is None else cls(**json.loads(data))


def save_start_offset(folder: Path, offset: int) -> None:
    disk.write_whole(folder / "start-offset", seal(str(offset).encode()))


def load_start_offset(folder: Path) -> int:
    """0 when none was ever set; raises DamagedFile."""
    path = folder / "start-offset"
    if path.exists() and (text := path.read_bytes()).isdigit():
        return int(text)  # format 1 had no checksum
    data = _read(path)
    return 0 if data is None else int(data)


def _read(path: Path) -> bytes | None:
    try:
        data = unseal(path.read_bytes())
    except FileNotFoundError:
        return None
    if data is None:
        raise DamagedFile(
            f"{path} is damaged. Restore it from a copy, or remove it: deleted records may then be served again, "
            "and compaction begins anew."
        )
    return data


def open_segments(folder: Path, sparse_below: int) -> list[Segment]:
    """The segments of the folder, at least one, with swaps of the cleaner finished and the torn end cut."""
    finish_swaps(folder)
    for leftover in (*folder.glob("*.tmp"), *folder.glob("*" + CLEANED), folder / "clean"):
        disk.remove(leftover)
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    segments = [Segment(folder / f"{base:020d}.log", base) for base in bases]
    for number, segment in enumerate(segments):
        following = bases[number + 1] if number + 1 < len(bases) else None
        segment.recover(following, sparse=segment.base_offset < sparse_below)
    return segments or [Segment.create(folder, 0)]


def finish_swaps(folder: Path) -> None:
    """Put cleaned segments in the place of those that they replace. May be repeated at any point.

    `<base>-<next>.swap` replaces every segment that begins in [base, next); its existence is the decision.
    """
    for swap in folder.glob("*" + SWAP):
        base, _, following = swap.stem.partition("-")
        for old in folder.glob("*.log"):
            if int(base) <= int(old.stem) < int(following):
                disk.remove(old.with_suffix(".index"))
                if int(old.stem) != int(base):
                    disk.remove(old)
        disk.rename(swap, folder / f"{base}.log")


def restore_producers(folder: Path, segments: list[Segment]) -> tuple[int, ProducerStates]:
    """What the log remembers of its producers, and the offset of the snapshot that it comes from.

    The batches behind the snapshot are taken to have come when their segment was last written to.
    """
    offset, states = snapshots.load(folder, segments[-1].next_offset)
    for segment in segments:
        if segment.next_offset > offset:
            seen_ms = int(segment.path.stat().st_mtime * 1000)
            for header, position in segment.batches_from(offset):
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    states.record_marker(header, is_commit_marker(segment.read_batch(header, position)), seen_ms)
                else:
                    states.record(header, seen_ms)
    return offset, states
