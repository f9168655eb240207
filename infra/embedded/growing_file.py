"""A file that is written at its end only: what a refused write or a refused fsync leaves behind is mended here."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from agl_stream.infra.embedded import disk


class GrowingFile:
    """How long the file is, its owner knows and says. Written by one thread; `force` may run in another.

    `lock` keeps `force`, `replace` and `close` apart.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flushed_bytes = 0
        """What a power cut would leave."""
        self.named = False
        """Whether the file's name is on the disk as well."""
        self.lock = threading.Lock()
        self._fd: int | None = None
        self._torn = False
        self._unsure = False

    def create(self) -> None:
        """Make the file unless it is there."""
        self._fd = disk.open_file(self.path, create=True)

    @property
    def fd(self) -> int:
        """The open file; opened on first use and kept until close()."""
        if self._fd is None:
            self._fd = disk.open_file(self.path)
        return self._fd

    def append(self, parts: Sequence[disk.Buffer], size_bytes: int) -> None:
        """Write all parts behind the first `size_bytes`. After an OSError the file is as it was before."""
        try:
            if self._torn:
                disk.truncate(self.fd, size_bytes)
                self._torn = False
            disk.write_at(self.fd, parts, size_bytes)
        except OSError:
            self._torn = True
            disk.truncate(self.fd, size_bytes)
            self._torn = False
            raise

    def force(self, size_bytes: int) -> None:
        """Force the first `size_bytes` and the file's name to disk. Blocks; the caller holds `lock`. Raises OSError."""
        try:
            if self._unsure:
                disk.redo(self.fd, self.flushed_bytes, size_bytes)
            disk.sync(self.fd)
            if not self.named:
                disk.sync_folder(self.path.parent)
        except OSError:
            self._unsure = True
            raise
        self.flushed_bytes, self._unsure, self.named = size_bytes, False, True

    def replace(self, fd: int, size_bytes: int) -> None:
        """Go on with the open file that was durably put in this one's place; the caller holds `lock`."""
        self._let_go()
        self._fd = fd
        self.flushed_bytes, self._unsure, self.named = size_bytes, False, True

    def close(self) -> None:
        with self.lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
