"""Each case runs on the embedded broker and, with the mark `engines`, on Apache Kafka; with each client that can.

`AGL_STREAM_CONFORMANCE_BOOTSTRAP=host:port` names an Apache Kafka that is already there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from agl_stream.infra.embedded.testing import BrokerThread
from tests.conformance.kafka.clients.wire import Wire
from tests.conformance.kafka.declare import declaration_of
from tests.conformance.kafka.engines import EMBEDDED, EMBEDDED_SETTINGS, KAFKA, Cluster, Use

BOOTSTRAP_VARIABLE = "AGL_STREAM_CONFORMANCE_BOOTSTRAP"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    declaration = declaration_of(metafunc.function)
    if "use" in metafunc.fixturenames:
        clients = declaration.clients()
        metafunc.parametrize("use", clients, ids=[client.name for client in clients], indirect=True)
    if "cluster" in metafunc.fixturenames:
        engines = [
            pytest.param("embedded"),
            pytest.param("kafka", marks=[pytest.mark.engines, pytest.mark.xdist_group("kafka")]),
        ]
        wanted = [engine for engine in engines if declaration.only in (None, engine.values[0])]
        metafunc.parametrize("cluster", wanted, indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        if request.param == "embedded":
            broker = stack.enter_context(BrokerThread(config=EMBEDDED_SETTINGS))
            engine = Cluster(broker.bootstrap_servers, EMBEDDED)
        else:
            address = os.environ.get(BOOTSTRAP_VARIABLE)
            engine = Cluster(address or request.getfixturevalue("kafka").bootstrap_servers, KAFKA)
        stack.callback(engine.close)
        yield engine


@pytest.fixture
def use(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Use]:
    opened = Use(request.param, cluster)
    yield opened
    opened.close()


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    connection = Wire(cluster.bootstrap_servers)
    yield connection
    connection.close()
