"""Which process is meant: an id alone may by now be somebody else's."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by its id, the moment it started (in the kernel's ticks since boot) and the boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has `pid` now; None when there is none, or only what an ended one left."""
        started = _start_ticks(pid)
        return None if started is None else cls(pid, started, _boot())

    @classmethod
    def read(cls, value: Any) -> Self:
        """From what `as_dict` made. Raises KeyError, TypeError, ValueError for anything else."""
        return cls(int(value["pid"]), int(value["started"]), str(value["boot"]))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def alive(self) -> bool:
        """Whether that very process runs."""
        return self.boot == _boot() and _start_ticks(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Signal that very process and nobody else; False when it is gone."""
        handle = self._open()
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Whether that very process ends within the time."""
        handle = self._open()
        if handle is None:
            return True
        try:
            end = select.poll()
            end.register(handle, select.POLLIN)
            return bool(end.poll(max(0.0, timeout_seconds) * 1000))
        finally:
            os.close(handle)

    def _open(self) -> int | None:
        """A handle that stays that process's, whatever becomes of its id; looked at only after it is held."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.alive():
            return handle
        os.close(handle)
        return None


def _start_ticks(pid: int) -> int | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
