"""Answers on their way into a socket: bytes, and slices of log files that never pass through this process.

One answer at a time, and nothing of a slice is in memory: a client that does not read costs the few bytes around
the records of one answer, whatever it has asked for.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable


class FileSlice:
    """`size` bytes of a file from `position` on. Has the file open for itself, so that it may be deleted meanwhile."""

    __slots__ = ("_fd", "_position", "_size")

    def __init__(self, fd: int, position: int, size: int) -> None:
        """Duplicates `fd`, which stays the caller's. Raises OSError when no more files can be open."""
        self._size = 0
        self._fd = os.dup(fd)
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def send(self, connected: socket.socket) -> None:
        """Hand over as much as the socket takes; len() is what is left.

        Raises BlockingIOError when it takes nothing now, OSError when the connection is broken, EOFError when the
        file ends within the slice.
        """
        sent = os.sendfile(connected.fileno(), self._fd, self._position, self._size)
        if not sent:
            raise EOFError(f"a log file ends {self._size} bytes before what it was said to hold")
        self._position += sent
        self._size -= sent

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)


Chunk = bytes | memoryview | FileSlice


def joined(parts: Iterable[Chunk]) -> list[Chunk]:
    """The same answer in as few chunks as can be."""
    chunks: list[Chunk] = []
    run: list[bytes | memoryview] = []
    for part in parts:
        if isinstance(part, FileSlice):
            chunks += (b"".join(run), part)
            run = []
        else:
            run.append(part)
    if run:
        chunks.append(b"".join(run))
    return chunks


class Outgoing:
    """What a socket has not taken yet of the answer that is being sent."""

    __slots__ = ("_chunks", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._chunks: deque[Chunk] = deque()

    def __bool__(self) -> bool:
        """Whether something is left to send."""
        return bool(self._chunks)

    def add(self, chunks: Iterable[Chunk]) -> None:
        self._chunks.extend(chunks)

    def clear(self) -> None:
        self._chunks.clear()

    def send(self) -> bool:
        """Hand over what the socket takes now; True when it took something. Raises OSError or EOFError."""
        chunks, progress = self._chunks, False
        while chunks:
            chunk = chunks[0]
            try:
                if isinstance(chunk, FileSlice):
                    chunk.send(self._socket)
                    rest: Chunk = chunk
                else:
                    # The records follow at once; a packet for the header alone would be one too many.
                    flags = socket.MSG_MORE if len(chunks) > 1 else 0
                    rest = memoryview(chunk)[self._socket.send(chunk, flags) :]
            except (BlockingIOError, InterruptedError):
                return progress
            progress = True
            if len(rest):
                chunks[0] = rest
            else:
                chunks.popleft()
        return progress
