"""The store under test. Another database joins by adding a factory: a function of a folder that opens a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agl_stream.streams.store import StateStore
from agl_stream.streams.store.sqlite import SqliteStore

OpenStore = Callable[[], StateStore]


def _sqlite(folder: Path) -> StateStore:
    return SqliteStore(folder / "state.db")


FACTORIES: dict[str, Callable[[Path], StateStore]] = {"sqlite": _sqlite}


@pytest.fixture(params=sorted(FACTORIES))
def open_fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStore]:
    """Opens empty stores, one after another; all are closed in the end."""
    opened: list[StateStore] = []

    def open_one() -> StateStore:
        opened.append(FACTORIES[request.param](tmp_path_factory.mktemp("store")))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_fresh: OpenStore) -> StateStore:
    return open_fresh()
