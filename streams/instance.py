"""A name for a process that survives its restart: the first one that no living process holds."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_MOST = 1024


@contextlib.contextmanager
def stable_name(kind: str, folder: Path) -> Iterator[str]:
    """``<kind>-<host>-<n>`` inside the ``with`` block, with the lowest n that is free.

    A restarted process takes the place of the one that died, so that a consumer group gives it its partitions back
    at once. The lock is a file's, which the kernel releases however a process ends. Where the folder cannot be
    locked, the process id stands in for n.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "host"
    held = None
    number = os.getpid()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for candidate in range(_MOST):
            descriptor = os.open(folder / f"{kind}-{candidate}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            held, number = descriptor, candidate
            break
    except OSError as error:
        logger.warning("%s cannot be locked (%s): this %s gets a new name at each start", folder, error, kind)
    try:
        yield f"{kind}-{host}-{number}"
    finally:
        if held is not None:
            os.close(held)
