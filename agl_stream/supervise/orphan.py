"""A child that must not outlive its supervisor, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_PID_VARIABLE = "AGL_STREAM_PARENT_PID"
"""Set by the supervisor for its children; taken out of the environment by the child at once."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process with its supervisor; no effect when it has none.

    Called first thing in a child. SIGKILL and not SIGTERM: a supervisor that was killed can no longer
    escalate, and every process here must survive a kill anyway. The signal follows the parent's
    *thread* that spawned this process, so the supervisor spawns from one thread that lives as long as it.
    """
    parent = os.environ.pop(PARENT_PID_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        # It died between our start and the call above, so the signal will never come.
        os._exit(1)
