"""What a process has used: CPU seconds and memory, for living and for ended processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessUsage:
    """CPU seconds (user and system, waited-for children included) and the greatest resident size."""

    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0

    def plus(self, other: ProcessUsage) -> ProcessUsage:
        """CPU seconds add up over incarnations; the greatest resident size is kept."""
        return ProcessUsage(self.cpu_seconds + other.cpu_seconds, max(self.max_rss_bytes, other.max_rss_bytes))


def of_living(pid: int) -> ProcessUsage:
    """Usage so far of a living process with all that it started; zeros when it is gone or there is no /proc."""
    own = _of_one(pid)
    for child in _children(pid):
        used = of_living(child)
        own = ProcessUsage(own.cpu_seconds + used.cpu_seconds, own.max_rss_bytes + used.max_rss_bytes)
    return own


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass  # It ended meanwhile, or this kernel does not tell.
    return found


def _of_one(pid: int) -> ProcessUsage:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return ProcessUsage()
    # The command name, field 2, may hold blanks and parentheses: count from its closing one.
    fields = stat.rpartition(")")[2].split()
    ticks = sum(int(value) for value in fields[11:15])  # utime, stime, cutime, cstime
    peak_kib = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return ProcessUsage(ticks / os.sysconf("SC_CLK_TCK"), peak_kib * 1024)


def rss_bytes(pid: int) -> int:
    """Resident size now; 0 when the process is gone or there is no /proc."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0)


def pss_bytes(pid: int) -> int:
    """Proportional set size now: shared pages are divided among their users, so that a sum over
    processes is what they take together. 0 when the process is gone or there is no /proc."""
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
