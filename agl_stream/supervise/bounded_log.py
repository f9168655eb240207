"""A log file that never outgrows its bound, and remembers its last lines for an error message."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path


class BoundedLog:
    """Appends lines to `path`; at `max_bytes` the file becomes `path`.1 (one old file is kept).

    Thread-safe. A disk that cannot be written does not stop the process whose lines these are: the
    lines are dropped and counted, and the count is written with the next line that succeeds.
    """

    def __init__(self, path: Path, *, max_bytes: int = 8 * 1024 * 1024, tail_lines: int = 15) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self._lock = threading.Lock()
        self._dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._size = path.stat().st_size

    @property
    def path(self) -> Path:
        return self._path

    def write(self, line: bytes) -> None:
        """Append one line (with or without its newline)."""
        line = line.rstrip(b"\r\n") + b"\n"
        with self._lock:
            self._tail.append(line.decode("utf-8", "replace").rstrip("\n"))
            if self._dropped:
                line = b"(%d lines could not be written)\n" % self._dropped + line
            try:
                if self._size + len(line) > self._max_bytes:
                    self._rotate()
                self._file.write(line)
                self._file.flush()
            except OSError:
                self._dropped += 1
                return
            self._size += len(line)
            self._dropped = 0

    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        with self._lock:
            return list(self._tail)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._file = self._path.open("ab")
        self._size = 0
