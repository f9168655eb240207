"""The databases that the cases run on, and what each declares of itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agl_stream.settings import Settings
from agl_stream.streams.store import StateStore, open_store


@dataclass(frozen=True)
class Capabilities:
    """What differs between stores on purpose. A case asserts what is promised in either event."""

    atomic_apply: bool
    """A batch that cannot be applied leaves nothing behind. Else it may leave data, never an offset."""
    reads_before_creation: bool
    """Opened for reading, a store that nobody has made yet is empty. Else it says that it is not there."""


class Database:
    """An empty state store, and any number of handles on it."""

    def __init__(self, settings: Settings, capabilities: Capabilities) -> None:
        self.settings = settings
        self.capabilities = capabilities
        self._opened: list[StateStore] = []

    def open(self, *, read_only: bool = False) -> StateStore:
        """A handle as another process would have one; closed with the database."""
        self._opened.append(open_store(self.settings, read_only=read_only))
        return self._opened[-1]

    def elsewhere(self) -> Database:
        """A database of the same kind that nobody has made."""
        if self.settings.store_url:
            changes = {"store_url": self.settings.store_url + "_elsewhere"}
        else:
            changes = {"dir": str(self.settings.folder / "elsewhere")}
        return Database(replace(self.settings, **changes), self.capabilities)

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Backend:
    """Makes databases, one at a time: making one may end the one before."""

    def __init__(
        self, name: str, capabilities: Capabilities, make_settings: Callable[[], Settings], *, examples: int
    ) -> None:
        """``examples``: how many logs a property is tried with; emptying a database of servers takes long."""
        self.name = name
        self.examples = examples
        self.capabilities = capabilities
        self._make_settings = make_settings

    def make(self) -> Database:
        return Database(self._make_settings(), self.capabilities)


def sqlite_backend(folder: Path) -> Backend:
    """Files in one folder after another below ``folder``."""

    def make_settings() -> Settings:
        shutil.rmtree(folder / "store", ignore_errors=True)
        return Settings(dir=str(folder / "store"))

    return Backend("sqlite", Capabilities(atomic_apply=True, reads_before_creation=True), make_settings, examples=12)
