"""librdkafka's log lines as ordinary log records, without floods.

A client whose broker is away repeats the same line for every connection attempt. The first one is worth
reading; the rest is worth a count.
"""

from __future__ import annotations

import logging
import re
import threading
import time

_DIGITS = re.compile(r"\d+")


class FloodGate(logging.Filter):
    """Lets a message through once every ``interval_seconds``; messages that differ only in digits are the same.

    The next one let through says how many were held back. Thread-safe; remembers at most 1,000 messages.
    """

    def __init__(self, interval_seconds: float = 30.0) -> None:
        super().__init__()
        self._interval = interval_seconds
        self._seen: dict[tuple[int, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        key = (record.levelno, _DIGITS.sub("#", text)[:120])
        now = time.monotonic()
        with self._lock:
            last, held = self._seen.get(key, (-self._interval, 0))
            if now - last < self._interval:
                self._seen[key] = (last, held + 1)
                return False
            if len(self._seen) >= 1000:
                self._seen.clear()
            self._seen[key] = (now, 0)
        if held:
            record.msg, record.args = f"{text} (and {held} more like it)", ()
        return True


def client_logger(name: str) -> logging.Logger:
    """The logger to hand to a Kafka client: ``agl_stream.kafka.<name>``, gated once."""
    logger = logging.getLogger(f"agl_stream.kafka.{name}")
    if not any(isinstance(known, FloodGate) for known in logger.filters):
        logger.addFilter(FloodGate())
    return logger
