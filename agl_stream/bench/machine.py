"""What a measurement ran on: without it a figure means nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

_LIBRARIES = ("agl-stream", "cassandra-driver", "confluent-kafka", "aiokafka", "faust-streaming", "fastavro", "kio")


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, kernel."""
    return {
        "processor": _from_proc("cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Python and the libraries that the hot paths run through."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _from_proc(file: str, field: str) -> str | None:
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), None)
