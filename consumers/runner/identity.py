"""Who a runner is: a name that survives restarts, and an instance that does not."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from agl_stream.consumers.runner.events import WorkerIdentity
from agl_stream.errors import UsageError
from agl_stream.schemas.clock import now_us

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@contextlib.contextmanager
def worker_identity(name: str | None, folder: Path) -> Iterator[WorkerIdentity]:
    """The identity to use inside the ``with`` block.

    Without a name it is ``runner-<host>-<n>`` with the lowest n that no living runner of this data folder holds, so
    that a restarted process takes the place of the one that died and its lost attempts are known at once. Where the
    folder cannot be locked the process id stands in for n. Raises UsageError for a name that cannot be one, or that
    a living runner of this folder has.
    """
    instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if name is not None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a runner: letters, digits, '.', '_' and '-', at most 128")
        with _exclusive(name, folder / "runners"):
            yield WorkerIdentity(name, instance, now_us())
        return
    with _ordinal(folder / "runners") as ordinal:
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "host"
        yield WorkerIdentity(f"runner-{host}-{ordinal}", instance, now_us())


@contextlib.contextmanager
def _exclusive(name: str, folder: Path) -> Iterator[None]:
    """Two group members of one static name throw each other out for ever, so the second is refused here."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = _lock(folder / f"name-{name}.lock")
    except OSError as error:
        logger.warning("%s cannot be locked (%s): nothing tells whether %r is unique", folder, error, name)
        yield
        return
    if held is None:
        raise UsageError(f"a runner named {name!r} runs already; names must be unique (--name)")
    try:
        yield
    finally:
        os.close(held)


@contextlib.contextmanager
def _ordinal(folder: Path) -> Iterator[int]:
    """The lowest free number; it is held by a file lock, which the kernel releases however the process ends."""
    try:
        ordinal, held = _lowest_free(folder)
    except OSError as error:
        logger.warning(
            "%s cannot be locked (%s): the runner's name changes with each start; give --name", folder, error
        )
        yield os.getpid()
        return
    try:
        yield ordinal
    finally:
        os.close(held)


def _lowest_free(folder: Path) -> tuple[int, int]:
    """(number, descriptor that holds its lock)."""
    folder.mkdir(parents=True, exist_ok=True)
    ordinal = 0
    while True:
        descriptor = _lock(folder / f"{ordinal}.lock")
        if descriptor is not None:
            return ordinal, descriptor
        ordinal += 1


def _lock(path: Path) -> int | None:
    """The descriptor that holds the file's lock, or None when a living process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
