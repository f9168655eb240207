"""pytest fixtures of real engines, shared by a session; loaded as a plugin by tests/conftest.py.

Engines are fetched when they are absent. Where a program they need is missing the tests fail with the sentence that
names it; AGL_STREAM_SKIP_ENGINES=1 skips them instead. AGL_STREAM_KEEP_ENGINES=1 keeps their folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from agl_stream.infra.servers.apicurio import Apicurio
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.connect import Connect
from agl_stream.infra.servers.engine import Engine, temporary_folder
from agl_stream.infra.servers.fetch import fetch
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.infra.servers.postgres import Postgres
from agl_stream.infra.servers.tools import ToolMissing

_Engine = TypeVar("_Engine", bound=Engine)


@contextmanager
def running(name: str, make: Callable[[Path], _Engine]) -> Iterator[_Engine]:
    """The engine that `make` makes in a folder of its own: started, and killed and removed afterwards."""
    if os.environ.get("AGL_STREAM_SKIP_ENGINES") == "1":
        pytest.skip("AGL_STREAM_SKIP_ENGINES=1")
    try:
        fetch([name])
    except ToolMissing as missing:
        pytest.fail(f"{missing}; or set AGL_STREAM_SKIP_ENGINES=1 to skip the tests on real engines", pytrace=False)
    folder, remove = temporary_folder(name)
    try:
        engine = make(folder)
        try:
            engine.start()
            yield engine
        finally:
            engine.kill()  # Its data is thrown away: no need to let it put its house in order.
    finally:
        remove()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One Apache Kafka node: `bootstrap_servers`, `nodes[0]`. Shared: tests keep apart by topic names."""
    with running("kafka", Kafka) as engine:
        yield engine


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[Kafka]:
    """Three Apache Kafka nodes, `nodes[i]` to be killed, paused and started again."""
    with running("kafka", lambda folder: Kafka(folder, nodes=3)) as engine:
        yield engine


@pytest.fixture(scope="session")
def cassandra() -> Iterator[Cassandra]:
    """One Cassandra node: `contact_points`, `nodes[0]`. Shared: tests keep apart by keyspace."""
    with running("cassandra", Cassandra) as engine:
        yield engine


@pytest.fixture(scope="module")
def cassandra_cluster() -> Iterator[Cassandra]:
    """Three Cassandra nodes on 127.0.0.1 to 127.0.0.3."""
    with running("cassandra", lambda folder: Cassandra(folder, nodes=3)) as engine:
        yield engine


@pytest.fixture(scope="session")
def apicurio() -> Iterator[Apicurio]:
    """An Apicurio registry: `url`, `ccompat_url`."""
    with running("registry", Apicurio) as engine:
        yield engine


@pytest.fixture(scope="session")
def connect_worker(kafka: Kafka) -> Iterator[Connect]:
    """A Kafka Connect worker on `kafka`: `url`."""
    with running("connect", lambda folder: Connect(folder, kafka.bootstrap_servers)) as engine:
        yield engine


@pytest.fixture(scope="session")
def connect(connect_worker: Connect) -> Connect:
    """`connect_worker`, where no fixture of that room takes the name."""
    return connect_worker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server: `jdbc_url`, `sql(text)`, `port`."""
    with running("postgres", Postgres) as engine:
        yield engine
