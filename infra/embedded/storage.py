"""Small durable files: atomic replacement, an append-only journal, and the lock on a data folder."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agl_stream.errors import AglStreamError, FolderNotWritable

logger = logging.getLogger(__name__)


class FolderInUse(FolderNotWritable):
    """Another process holds the data folder."""


class DamagedFile(AglStreamError):
    """A file of the data folder cannot be read and must not be guessed at."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash the old or the new content is there, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class FolderLock:
    """Exclusive use of a data folder, released when the process ends, however it ends."""

    def __init__(self, folder: Path, what: str) -> None:
        """Create the folder if needed and lock it.

        Raises FolderNotWritable, or FolderInUse when another process (or this one) has it.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FolderNotWritable(
                f"{what}: cannot write to the data folder {folder} ({error.strerror}). "
                "Give another folder with --dir, or make this one writable."
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise FolderInUse(
                f"{what}: the data folder {folder} is in use by process {holder}. "
                "Stop that process, or give another folder with --dir."
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


_HISTORY_BYTES = 4 * 1024 * 1024
_HISTORY_FACTOR = 8


class Journal:
    """Append-only JSON lines, one entry a line, that survive the kill of the process.

    A torn last line is cut on load. Damage before it is an error: entries behind it would be lost in silence.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._live_bytes = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

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
                if end >= 0 and any(_parse(rest) is not None for rest in data[end + 1 :].split(b"\n")):
                    raise DamagedFile(
                        f"{self.path}: line {len(entries) + 1} is damaged and valid lines follow. "
                        "Restore the file from a copy, or remove that line by hand and accept the loss."
                    )
                logger.warning("%s: cut %d torn bytes after entry %d", self.path, len(data) - at, len(entries))
                os.ftruncate(self._fd, at)
                break
            entries.append(entry)
            at = end + 1
        self.size_bytes = at
        return entries

    def append(self, entries: Iterable[Any]) -> None:
        """Add entries in one write. Raises OSError when the file system refuses; nothing is added then."""
        data = b"".join(json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(data)

    def rewrite(self, entries: Iterable[Any]) -> None:
        """Replace the content by these entries, atomically."""
        data = b"".join(json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries)
        write_atomically(self.path, data)
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size_bytes = self._live_bytes = len(data)

    @property
    def mostly_history(self) -> bool:
        """Whether the file has grown to several times its content after the last rewrite: time for another one."""
        return self.size_bytes > max(_HISTORY_BYTES, _HISTORY_FACTOR * self._live_bytes)

    def flush(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)


def _parse(line: bytes) -> Any | None:
    try:
        return json.loads(line)
    except ValueError:
        return None
