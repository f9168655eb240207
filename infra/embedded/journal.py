"""An append-only journal of JSON entries that survives kills, and in which damage is noticed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agl_stream.errors import AglStreamError
from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.growing_file import GrowingFile
from agl_stream.infra.embedded.log.metrics import COUNTERS
from agl_stream.infra.embedded.seal import seal, unseal

logger = logging.getLogger(__name__)

_HISTORY_BYTES = 4 * 1024 * 1024
_HISTORY_FACTOR = 8
_SECTOR_BYTES = 512
_ZEROS = re.compile(rb"\0+")


class DamagedFile(AglStreamError):
    """A file of the data folder cannot be read and must not be guessed at."""


class Journal:
    """One entry a line, each behind its checksum.

    A torn end is cut on load. Damage before it is an error: entries behind it would be lost in silence. A line in
    which the disk has a hole (zero bytes, from a power cut before a flush) counts as the beginning of the torn end; a
    lone zero byte is a hole only where a sector ends. Lines without a checksum, from folders of format 1, are read too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._live_bytes = 0
        self._file = GrowingFile(path)
        self._file.create()

    def load(self) -> list[Any]:
        """All entries; raises DamagedFile."""
        data = self.path.read_bytes()
        entries: list[Any] = []
        at = 0
        while at < len(data):
            end = data.find(b"\n", at)
            line = data[at : end if end >= 0 else len(data)]
            entry = _parse(line) if end >= 0 else None
            if entry is None:
                if end >= 0 and not _has_hole(data, at, end):
                    raise DamagedFile(
                        f"{self.path}: line {len(entries) + 1} is damaged. "
                        "Restore the file from a copy, or remove that line by hand and accept the loss."
                    )
                logger.warning("%s: cut %d torn bytes after entry %d", self.path, len(data) - at, len(entries))
                COUNTERS.cut_bytes += len(data) - at
                disk.truncate(self._file.fd, at)
                break
            entries.append(entry)
            at = end + 1
        self.size_bytes = at
        return entries

    def append(self, entries: Iterable[Any]) -> None:
        """Add entries in one write. Raises OSError when the file system refuses; nothing is added then."""
        lines = [_line(entry) for entry in entries]
        data = b"".join(lines)
        self._file.append([data], self.size_bytes)
        self.size_bytes += len(data)
        COUNTERS.journal_entries += len(lines)

    def rewrite(self, entries: Iterable[Any]) -> None:
        """Replace the content by these entries, atomically and durably. Raises OSError; the old content stays then."""
        data = b"".join(_line(entry) for entry in entries)
        disk.write_whole(self.path, data)
        fd = disk.open_file(self.path)
        with self._file.lock:
            self._file.replace(fd, len(data))
            self.size_bytes = self._live_bytes = len(data)

    def rewrite_if_mostly_history(self, entries: Iterable[Any]) -> None:
        """Rewrite when the file has grown to several times its content after the last time.

        A refusal of the file system is only logged: everything is in the file as it is, and the next time will do.
        """
        if not self.mostly_history:
            return
        try:
            self.rewrite(entries)
        except OSError as error:
            logger.error("%s: not shortened (%s), tried again later", self.path, error.strerror)

    @property
    def mostly_history(self) -> bool:
        """Whether the file has grown to several times its content after the last rewrite: time for another one."""
        return self.size_bytes > max(_HISTORY_BYTES, _HISTORY_FACTOR * self._live_bytes)

    def flush(self) -> None:
        """Force everything appended before to disk. Blocks; safe in a thread. Raises OSError."""
        with self._file.lock:
            size_bytes = self.size_bytes
            if size_bytes != self._file.flushed_bytes or not self._file.named:
                self._file.force(size_bytes)

    def close(self) -> None:
        """Flush if the file system lets us, and close."""
        try:
            self.flush()
        except OSError as error:
            logger.error("%s: not flushed at the stop (%s)", self.path, error.strerror)
        self._file.close()


def _line(entry: Any) -> bytes:
    return seal(json.dumps(entry, separators=(",", ":")).encode()) + b"\n"


def _has_hole(data: bytes, start: int, end: int) -> bool:
    holes = _ZEROS.finditer(data, start, end)
    return any(hole.end() - hole.start() > 1 or hole.end() % _SECTOR_BYTES == 0 for hole in holes)


def _parse(line: bytes) -> Any | None:
    text = line if line[:1] in (b"[", b"{") else unseal(line)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
