"""Server-sent events: a byte stream cut into whole events, each kept byte for byte."""

from __future__ import annotations

import re

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
DONE = b"[DONE]"


class EventTooLong(ValueError):
    """An event that does not end."""


class EventSplitter:
    """``feed`` bytes as they come; get the events they complete. An event above ``max_bytes`` raises EventTooLong."""

    def __init__(self, max_bytes: int = 8_388_608) -> None:
        self._rest = b""
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Whole events, with the blank line that ends each."""
        # a separator may lie across the border of two pieces: look again at the last three bytes of the old one
        start = max(len(self._rest) - 3, 0)
        buffer = self._rest + data if self._rest else data
        events: list[bytes] = []
        begin = 0
        while (match := _BLANK_LINE.search(buffer, max(start, begin))) is not None:
            events.append(buffer[begin : match.end()])
            begin = match.end()
        self._rest = buffer[begin:]
        if len(self._rest) > self._max_bytes:
            raise EventTooLong(f"an event of the stream is longer than {self._max_bytes:,} bytes")
        return events

    def rest(self) -> bytes:
        """What has come of an event that is not complete."""
        return self._rest


def data_of(event: bytes) -> bytes:
    """The event's data: its ``data:`` lines joined by newlines; empty for a comment."""
    if event.startswith(b"data: ") and event.count(b"\n") <= 2 and b"\r" not in event:
        return event[6:].strip()
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
