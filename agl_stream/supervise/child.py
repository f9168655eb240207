"""One incarnation of a supervised process: spawned, listened to, ended. Never restarted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from agl_stream.supervise.bounded_log import BoundedLog
from agl_stream.supervise.orphan import PARENT_PID_VARIABLE
from agl_stream.supervise.usage import ProcessUsage, of_living

_READY = re.compile(rb"\bready\b")


@dataclass(frozen=True)
class ProcessSpec:
    """What to run and what is expected of it.

    `name`: unique below one supervisor; the log is NAME.log.
    `argv`: the command. `env`: variables on top of this process's own.
    `ready_timeout_seconds`: time to print a line with the word `ready` on stdout; None: ready when spawned.
    `stop_timeout_seconds`: time between SIGTERM and SIGKILL.
    `ends`: exit status 0 is completion, not a death that asks for a restart.
    `waits_with`: the exit status by which it says that something it needs is away, which a restart does cure as soon
    as that is back: however often it has come, it is no reason to give the process up.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    ready_timeout_seconds: float | None = 60.0
    stop_timeout_seconds: float = 10.0
    ends: bool = False
    waits_with: int | None = None


class Child:
    """A running process in its own session, so that a terminal's Ctrl-C reaches only its supervisor.

    `on_ready(child)` and `on_exit(child)` are called from threads of this class, once each.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        log: BoundedLog,
        *,
        on_ready: Callable[[Child], None],
        on_exit: Callable[[Child], None],
    ) -> None:
        self.spec = spec
        self.ready_line: str | None = None
        self.exit_status: int | None = None
        self._log = log
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._used = ProcessUsage()
        self._gone = threading.Event()
        self._process = subprocess.Popen(
            list(spec.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **spec.env, PARENT_PID_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def usage(self) -> ProcessUsage:
        """Used so far, or in all when it has ended.

        The greatest resident size of an ended process is that of the last call before its end: the
        kernel's own figure counts what the supervisor held when it forked. The keeper calls this every second.
        """
        if not self._gone.is_set():
            living = of_living(self.pid)  # Zeros when it ended meanwhile.
            self._used = ProcessUsage(
                max(self._used.cpu_seconds, living.cpu_seconds), max(self._used.max_rss_bytes, living.max_rss_bytes)
            )
        return self._used

    def signal(self, number: int) -> None:
        """Send a signal to the process; nothing when it has ended."""
        if not self._gone.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # Ended between the check and the call; on_exit reports it.

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Whether the process ended within the time."""
        return self._gone.wait(timeout_seconds)

    def _read_stdout(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._log.write(line)
            if self.ready_line is None and _READY.search(line):
                self.ready_line = line.decode("utf-8", "replace").strip()
                self._on_ready(self)

    def _read_stderr(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._log.write(line)

    def _wait(self) -> None:
        # First without reaping: while the process is a zombie its id cannot be given to another
        # group, so what it left running can be ended safely by the group's id.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # No such group: it left nothing running.
        for reader in self._readers:
            reader.join(timeout=1.0)  # The last lines, which say why it died, before the exit is told.
        _, status, rusage = os.wait4(self.pid, 0)
        self.exit_status = os.waitstatus_to_exitcode(status)
        self._process.returncode = self.exit_status
        self._used = ProcessUsage(rusage.ru_utime + rusage.ru_stime, self._used.max_rss_bytes)
        self._gone.set()
        self._on_exit(self)
