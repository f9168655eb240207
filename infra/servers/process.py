"""One server process: started, waited for, stopped, killed, paused. It ends with the process that started it."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agl_stream.errors import AglStreamError
from agl_stream.infra.servers.tools import setpriv
from agl_stream.supervise import rss_bytes

_LOOK_SECONDS = 0.05
_TAIL_BYTES = 4096
_TAIL_LINES = 15

# The parent is compared after the kernel was asked to kill with it: one that ended in between would go unnoticed.
_GUARD = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'


class ServerFailed(AglStreamError):
    """A server ended, or was silent, before it was ready."""


class Cancelled(AglStreamError):
    """A start was given up because somebody no longer wants it."""

    exit_code = 130


class _Spawner:
    """A thread that starts all servers and lives as long as this process.

    The kernel ties a child to the *thread* that started it: without this, a server started from a thread
    pool would die as soon as that thread did.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def popen(self, argv: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """As subprocess.Popen(argv, **options)."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # Not alive: this is a fork of that process.
                self._thread = threading.Thread(target=self._run, name="server-spawner", daemon=True)
                self._thread.start()
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def job() -> None:
            try:
                answer.put(subprocess.Popen(argv, **options))  # type: ignore[call-overload]
            except OSError as error:
                answer.put(error)

        self._jobs.put(job)
        result = answer.get()
        if isinstance(result, OSError):
            raise result
        return result

    def _run(self) -> None:
        while True:
            self._jobs.get()()


_spawner = _Spawner()


class ServerProcess:
    """A command that serves on this machine, from `start` to `stop` or `kill`, as often as wanted.

    `ready(process)` is asked until it is true; `process.printed_since_start` gives it the log of this start.
    `privileges` are further options of setpriv for the server (a user to become, capabilities to drop).
    Standard output and error go to `folder`/`name`.log, which is appended to over restarts.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        *,
        ready: Callable[[ServerProcess], bool],
        env: Mapping[str, str] | None = None,
        privileges: Sequence[str] = (),
        ready_timeout_seconds: float = 120.0,
        stop_timeout_seconds: float = 30.0,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.folder = folder
        self.log_path = folder / f"{name}.log"
        self.ready_seconds: float | None = None
        self._ready = ready
        self._env = dict(env or {})
        self._privileges = list(privileges)
        self._ready_timeout_seconds = ready_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """Id of the running process."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """How the last start ended; negative: by that signal."""
        return self._process.poll() if self._process is not None else None

    def command(self) -> list[str]:
        """What is run: `argv` behind what ties it to this process. Raises ToolMissing."""
        tie = [setpriv(), "--pdeathsig=KILL", *self._privileges, "--", "/bin/sh", "-c", _GUARD, "sh", str(os.getpid())]
        return [*tie, *self.argv]

    def start(self) -> None:
        """Start the process without waiting; nothing when it runs. Raises ToolMissing, ServerFailed."""
        if self.running:
            return
        command = self.command()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ready_seconds = None
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._started_at = time.monotonic()
            try:
                self._process = _spawner.popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env={**os.environ, **self._env},
                    start_new_session=True,  # A terminal's Ctrl-C reaches only whoever stops this in order.
                )
            except OSError as error:
                raise ServerFailed(f"{self.name} cannot be started ({command[0]}): {error}") from None

    def wait_ready(self, cancelled: threading.Event | None = None) -> None:
        """Block until the server serves.

        Raises ServerFailed with the end of its log when it ends or takes too long, Cancelled when that event is set.
        """
        deadline = self._started_at + self._ready_timeout_seconds
        while True:
            if not self.running:
                raise ServerFailed(
                    f"{self.name} ended with {self.exit_status} before it was ready" + self._last_lines()
                )
            if self._ready(self):
                self.ready_seconds = time.monotonic() - self._started_at
                return
            if cancelled is not None and cancelled.is_set():
                raise Cancelled(f"the start of {self.name} was given up")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} was not ready within {self._ready_timeout_seconds:g} s" + self._last_lines()
                )
            time.sleep(_LOOK_SECONDS)

    def ask_to_stop(self) -> None:
        """Send the signal of `stop` without waiting."""
        self._signal(self._stop_signal)
        self.resume()  # A paused process would keep the signal for later.

    def stop(self) -> None:
        """End it in order, killing it when that takes too long; nothing when it does not run."""
        if self._process is None or not self.running:
            return
        self.ask_to_stop()
        try:
            self._process.wait(self._stop_timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nothing when it does not run."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def wait(self, timeout_seconds: float) -> int:
        """Its exit status, once it has ended; subprocess.TimeoutExpired when it runs on."""
        assert self._process is not None, "never started"
        return self._process.wait(timeout_seconds)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, as a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: undo `pause`."""
        self._signal(signal.SIGCONT)

    def rss_bytes(self) -> int:
        """Resident memory; 0 when it does not run."""
        return rss_bytes(self.pid) if self.pid is not None else 0

    def printed_since_start(self, text: str) -> bool:
        """Whether this start has logged `text`."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def bound_log(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        """Begin the log anew when it has outgrown `max_bytes`; what was in it is kept as NAME.log.1.

        The server appends, so it goes on at the new beginning. A line written in between is lost.
        """
        if not self.log_path.exists() or self.log_path.stat().st_size <= max_bytes:
            return
        shutil.copyfile(self.log_path, self.log_path.with_name(self.log_path.name + ".1"))
        os.truncate(self.log_path, 0)
        self._log_start = 0

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def _last_lines(self) -> str:
        with self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        return f"; its last lines ({self.log_path}):" + "".join(f"\n    {line}" for line in lines)
