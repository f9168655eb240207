"""Every change that the embedded engines make to files goes through here.

So there is one place where short writes are completed, where what "durable" takes is decided, and where a test can
stop the process in the middle of any write. A write that returns is with the operating system: a kill of the process
loses nothing of it. It is on the disk after sync() of the file and, for a new or renamed file, sync_folder().
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agl_stream.infra.embedded.log.metrics import COUNTERS

Buffer = bytes | bytearray | memoryview

_COPY_BYTES = 1024 * 1024


def open_file(path: Path, *, create: bool = False) -> int:
    """A descriptor for reading and positional writing."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)


def write_at(fd: int, parts: Sequence[Buffer], position: int) -> None:
    """Write all parts one after another from `position` on. After an OSError any beginning of them may be there."""
    written = os.pwritev(fd, parts, position)
    size_bytes = sum(len(part) for part in parts)
    if written == size_bytes:
        return
    data = memoryview(b"".join(parts))
    while written < size_bytes:
        written += os.pwrite(fd, data[written:], position + written)


def truncate(fd: int, size_bytes: int) -> None:
    os.ftruncate(fd, size_bytes)


def sync(fd: int) -> None:
    """Force the file's content to disk. Blocks. Raises OSError: what was written may then never arrive, see redo()."""
    COUNTERS.fsyncs += 1
    try:
        os.fsync(fd)
    except OSError:
        COUNTERS.failed_fsyncs += 1
        raise


def redo(fd: int, start: int, stop: int) -> None:
    """Write a range again with what it holds.

    After a refused fsync the kernel takes the pages for clean, and the next fsync would succeed without having
    written them. Writing makes them dirty again.
    """
    for position in range(start, stop, _COPY_BYTES):
        write_at(fd, [os.pread(fd, min(_COPY_BYTES, stop - position), position)], position)


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to disk: which files there are, and what they are called."""
    COUNTERS.folder_fsyncs += 1
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create it, and those above it, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)


def rename(source: Path, target: Path) -> None:
    """Atomic; an existing target is replaced."""
    source.replace(target)


def remove(path: Path) -> None:
    """Delete a file; one that is not there is fine."""
    path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`: after a crash the old or the new content is there, never a mixture.

    Not `durable`: after a power cut the content may be torn; for files with a checksum that can be made again.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        fd = open_file(temporary, create=True)
        try:
            truncate(fd, 0)
            write_at(fd, [data], 0)
            if durable:
                sync(fd)
        finally:
            os.close(fd)
        rename(temporary, path)
    except OSError:
        remove(temporary)
        raise
    if durable:
        sync_folder(path.parent)
