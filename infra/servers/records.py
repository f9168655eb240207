"""What a data folder says of the engines that run, or ran, below it."""

from __future__ import annotations

import fcntl
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_stream.errors import FolderNotWritable
from agl_stream.infra.servers.identity import ProcessIdentity
from agl_stream.supervise import rss_bytes

_RECORD, _LOCK = "running.json", "keeper.lock"
_LEFTOVER_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """A running engine, written by the process that keeps it when it is ready and at every change.

    `background`: started to run on its own, and ended by `agl-stream engines stop`.
    """

    engine: str
    version: str
    address: str
    settings: dict[str, str]
    keeper: ProcessIdentity
    nodes: dict[str, ProcessIdentity]
    background: bool

    def rss_bytes(self) -> int:
        """Resident memory of the nodes that live."""
        return sum(rss_bytes(node.pid) for node in self.nodes.values() if node.alive())

    def as_dict(self) -> dict[str, Any]:
        return {
            **{"engine": self.engine, "version": self.version, "address": self.address, "settings": self.settings},
            "background": self.background,
            "keeper": self.keeper.as_dict(),
            "nodes": {name: node.as_dict() for name, node in self.nodes.items()},
        }


class EngineFolder:
    """The folder of one engine below a data folder: its data, and who keeps it running."""

    def __init__(self, data_folder: Path, engine: str) -> None:
        self.engine = engine
        self.path = data_folder.absolute() / "engines" / engine
        self.log_path = data_folder.absolute() / "logs" / f"engine-{engine}.log"

    def running(self) -> Record | None:
        """The engine, if a living process keeps it here; who left a record and is gone does not count."""
        record = self._read()
        return record if record is not None and record.keeper.alive() else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one process that keeps this engine; FolderNotWritable when another does, or it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a")
        except OSError as error:
            raise FolderNotWritable(
                f"{self.path} cannot be used ({error.strerror}): choose another data folder with --dir "
                "(AGL_STREAM_DIR), or correct its permissions"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = self.running()
                who = f" at {other.address} (process {other.keeper.pid})" if other else ""
                raise FolderNotWritable(
                    f"{self.engine} runs already in {self.path}{who}: use that one, or end it first "
                    f"(`agl-stream engines stop {self.engine}` when it runs in the background)"
                ) from None
            self._end_leftovers()
            (self.path / _RECORD).unlink(missing_ok=True)
            try:
                yield
            finally:
                (self.path / _RECORD).unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        """Only while held. A reader sees the old record or the new one."""
        target = self.path / _RECORD
        draft = target.with_suffix(".new")
        draft.write_text(json.dumps(record.as_dict()) + "\n")
        draft.replace(target)

    def _end_leftovers(self) -> None:
        """Nodes of a keeper that was killed are dying too, and hold ports and data until they are gone."""
        record = self._read()
        for node in record.nodes.values() if record else ():
            if not node.wait_gone(_LEFTOVER_SECONDS):
                node.signal(signal.SIGKILL)
                node.wait_gone(_LEFTOVER_SECONDS)

    def _read(self) -> Record | None:
        try:
            found = json.loads((self.path / _RECORD).read_text())
            return Record(
                engine=found["engine"],
                version=found["version"],
                address=found["address"],
                settings=found["settings"],
                keeper=ProcessIdentity.read(found["keeper"]),
                nodes={name: ProcessIdentity.read(node) for name, node in found["nodes"].items()},
                background=found["background"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # Not there, or not written by this.
