"""Fixtures for every room: an embedded broker, started once, and a registry beside it; real engines as a plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agl_stream.infra.embedded.testing import BrokerThread

pytest_plugins = ["agl_stream.infra.servers.fixtures"]

# Each test writes to a namespace of its own and is development in this: what it writes registers its schema.
os.environ.setdefault("AGL_STREAM_REGISTER_SCHEMAS", "1")


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerThread]:
    """A broker with `bootstrap_servers` and `registry_url`; tests share it and keep apart by topic names."""
    with BrokerThread(registry=True) as thread:
        yield thread


@pytest.fixture(scope="session")
def bootstrap_servers(broker: BrokerThread) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="session")
def registry_url(broker: BrokerThread) -> str:
    return broker.registry_url
