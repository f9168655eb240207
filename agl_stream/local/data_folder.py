"""The folder a local system lives in: held by one system at a time, and where others find its endpoints."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from agl_stream.errors import FolderNotWritable
from agl_stream.settings import ENDPOINTS_FILE, SHARED_BY_FOLDER, Settings

_LOCK_FILE = "up.lock"


@dataclass(frozen=True)
class Endpoints:
    """What other processes need to join a local system."""

    bootstrap_servers: str
    registry_url: str
    gateway_url: str
    data_dir: str


class DataFolder:
    """A data folder that this process holds from `__enter__` to `__exit__`.

    The lock is the kernel's (flock): it goes with the process, however that ends, so a stale lock file
    never has to be removed by hand.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: IO[str] | None = None

    @property
    def log_dir(self) -> Path:
        return self.path / "logs"

    def __enter__(self) -> DataFolder:
        """Make the folder if need be and take it; FolderNotWritable when that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK_FILE).open("a+")
        except OSError as error:
            raise FolderNotWritable(
                f"data folder {self.path} cannot be used ({error.strerror}): "
                "choose another with --dir (AGL_STREAM_DIR), or correct its permissions"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise FolderNotWritable(
                f"data folder {self.path} is in use by a running system (process {holder}): "
                "stop that one, or choose another folder with --dir (AGL_STREAM_DIR)"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        # Left behind by a system that was killed; until the new one is ready nobody shall find it.
        self.withdraw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.withdraw()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def publish(self, endpoints: Endpoints, settings: Settings) -> None:
        """Write the endpoints file, with those of ``settings`` that others in the folder have to share (the endpoints
        win); a reader sees all of it or nothing."""
        shared = {name: getattr(settings, name) for name in SHARED_BY_FOLDER}
        target = self.path / ENDPOINTS_FILE
        draft = target.with_name(target.name + ".new")
        draft.write_text(json.dumps({**shared, **asdict(endpoints), "pid": os.getpid()}) + "\n")
        draft.replace(target)

    def withdraw(self) -> None:
        """Remove the endpoints file."""
        (self.path / ENDPOINTS_FILE).unlink(missing_ok=True)
