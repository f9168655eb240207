"""A disk that stops the process in the middle of a chosen change, and knows what a power cut would have left.

Used by a child process: `install(...)` replaces the functions of `agl_stream.infra.embedded.disk`. The process dies
with SIGKILL at the n-th change of a file whose name contains `target`; a write is cut at a random byte.

What a power cut leaves is kept in memory: the content of a file at its last sync(), and the names in a folder at its
last sync_folder(). Of what was not synced a random part may have arrived. At the death it is written to `platter`.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from agl_stream.infra.embedded import disk

_write_at, _truncate, _sync, _sync_folder = disk.write_at, disk.truncate, disk.sync, disk.sync_folder
_open_file, _make_folder, _rename, _remove = disk.open_file, disk.make_folder, disk.rename, disk.remove


class DyingDisk:
    def __init__(self, root: Path, target: str, countdown: int, seed: int, platter: Path | None) -> None:
        self._root = root
        self._target = target
        self._countdown = countdown
        self._random = random.Random(seed)
        self._platter = platter
        self._synced: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept: list[int] = []

    def install(self) -> None:
        for name in ("write_at", "truncate", "sync", "sync_folder", "open_file", "make_folder", "rename", "remove"):
            setattr(disk, name, getattr(self, name))

    def _hits(self, *names: str) -> bool:
        if not any(self._target in name for name in names):
            return False
        self._countdown -= 1
        return self._countdown == 0

    def die(self) -> None:
        if self._platter is not None:
            self._leave(self._root, self._platter)
        os.kill(os.getpid(), signal.SIGKILL)

    def _leave(self, folder: Path, copy: Path) -> None:
        copy.mkdir(parents=True, exist_ok=True)
        for name, inode in self._names.get(folder, {}).items():
            if folder / name in self._names or inode < 0:
                self._leave(folder / name, copy / name)
            else:
                (copy / name).write_bytes(self._arrived(inode, folder / name))

    def _arrived(self, inode: int, path: Path) -> bytes:
        """The synced content and a random part of what was written behind it."""
        synced = self._synced.get(inode, b"")
        if path.exists() and path.stat().st_ino == inode:
            now = path.read_bytes()
            if now.startswith(synced):
                return now[: self._random.randint(len(synced), len(now))]
        return synced

    # The functions of disk

    def write_at(self, fd, parts, position):
        if self._hits(_name(fd)):
            data = b"".join(parts)
            os.pwrite(fd, data[: self._random.randint(0, len(data))], position)
            self.die()
        _write_at(fd, parts, position)

    def truncate(self, fd, size_bytes):
        if self._hits(_name(fd)):
            self.die()
        _truncate(fd, size_bytes)

    def sync(self, fd):
        if self._hits(_name(fd)):
            self.die()
        _sync(fd)
        self._synced[os.fstat(fd).st_ino] = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_folder(self, folder):
        if self._hits(*(entry.name for entry in folder.iterdir() if self._target in entry.name)):
            self.die()
        _sync_folder(folder)
        self._names[folder] = {entry.name: -1 if entry.is_dir() else entry.stat().st_ino for entry in folder.iterdir()}

    def open_file(self, path, *, create=False):
        is_new = create and not path.exists()
        if is_new and self._hits(path.name):
            self.die()
        fd = _open_file(path, create=create)
        if is_new:
            self._synced.pop(os.fstat(fd).st_ino, None)  # the number of a file that is gone
        return fd

    def make_folder(self, folder):
        if not folder.exists() and self._hits(folder.name):
            self.die()
        _make_folder(folder)

    def rename(self, source, target):
        if self._hits(source.name, target.name):
            if self._random.random() < 0.5:
                _rename(source, target)
            self.die()
        self._keep_number(target)
        _rename(source, target)

    def remove(self, path):
        if path.exists() and self._hits(path.name):
            self.die()
        self._keep_number(path)
        _remove(path)

    def _keep_number(self, path):
        """Keep the inode's number of a file that goes from being given to another: the platter may still have it."""
        if path.exists():
            self._kept.append(os.open(path, os.O_RDONLY))


def _name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name
