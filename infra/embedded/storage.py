"""The lock on a data folder, and the format of what is in it."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from pathlib import Path

from agl_stream.errors import FolderNotWritable
from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.seal import seal, unseal

logger = logging.getLogger(__name__)


_RESERVE_BYTES = 256 * 1024


class FolderInUse(FolderNotWritable):
    """Another process holds the data folder."""


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
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            logger.warning("%s: no room in %s for the number of this process", what, folder)

    def release(self) -> None:
        os.close(self._fd)


class Reserve:
    """A little room on the disk, kept for what makes more room: a full disk must not refuse to delete a topic."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "reserve"

    def hold(self) -> None:
        """Take the room, if it is free to be had."""
        if self._path.exists():
            return
        try:
            disk.write_whole(self._path, bytes(_RESERVE_BYTES), durable=False)
        except OSError as error:
            logger.warning("%s: no room to keep in reserve (%s)", self._path, error.strerror)

    def release(self) -> bool:
        """Give it up; returns whether there was any."""
        held = self._path.exists()
        disk.remove(self._path)
        return held


FORMAT = 2
"""Of the broker's data folder. 1: no checksums in journals and small files, and no file that says so."""
_FORMAT_FILE = "format"


def check_format(folder: Path) -> int:
    """Format of the broker's folder, FORMAT for an empty one.

    Raises DamagedFile for a folder of a newer version, which this one would misread, and for an unreadable format.
    """
    try:
        payload = unseal((folder / _FORMAT_FILE).read_bytes())
    except FileNotFoundError:
        return 1 if (folder / "catalogue.json").exists() else FORMAT
    try:
        found = json.loads(payload or b"")["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            f"{folder / _FORMAT_FILE} is not readable. Restore it from a copy; "
            f"if this version wrote the folder, removing the file and starting again does the same."
        ) from error
    if found > FORMAT:
        raise DamagedFile(
            f"the data folder {folder} has format {found} and this version of agl-stream reads formats up to {FORMAT}. "
            "Use the version that wrote it, or give another folder with --dir."
        )
    return found


def is_marked(folder: Path) -> bool:
    """Whether the folder says which format it has."""
    return (folder / _FORMAT_FILE).exists()


def mark_format(folder: Path) -> None:
    """Say that everything in the folder can be read as FORMAT. To be called when that is true."""
    disk.write_whole(folder / _FORMAT_FILE, seal(json.dumps({"format": FORMAT}).encode()))
