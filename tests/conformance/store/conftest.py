"""The store under test. Every case runs on each back end; those that need servers carry the mark ``engines``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agl_stream.streams.store import StateStore
from tests.conformance.store.backends import Backend, Database, sqlite_backend


@pytest.fixture(scope="session", params=["sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return sqlite_backend(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture
def database(backend: Backend) -> Iterator[Database]:
    """An empty database."""
    made = backend.make()
    yield made
    made.close()


@pytest.fixture
def store(database: Database) -> StateStore:
    """An empty store, open for writing."""
    return database.open()
