"""The store under test. Every case runs on each back end; those that need servers carry the mark ``engines``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agl_stream.streams.store import StateStore
from tests.conformance.store.backends import Backend, Database, sqlite_backend


@pytest.fixture(
    scope="session",
    params=[
        "sqlite",
        pytest.param("cassandra", marks=pytest.mark.engines),
        pytest.param("cassandra-3", marks=pytest.mark.engines),
    ],
)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Each in turn for all the cases, so that three nodes are started once."""
    if request.param == "sqlite":
        yield sqlite_backend(tmp_path_factory.mktemp("sqlite"))
        return
    from tests.conformance.store.cassandra_backend import cassandra_backend

    if request.param == "cassandra":
        points, copies = request.getfixturevalue("cassandra").contact_points, 1
    else:
        points, copies = request.getfixturevalue("three_nodes"), 3
    with cassandra_backend(request.param, points, copies) as made:
        yield made


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[str]:
    """Contact points of a cluster that all modules share."""
    from agl_stream.infra.servers.cassandra import Cassandra
    from agl_stream.infra.servers.fixtures import running

    with running("cassandra", lambda folder: Cassandra(folder, nodes=3)) as engine:
        yield engine.contact_points


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
