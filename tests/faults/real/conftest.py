"""Three Kafka nodes with the whole system under load on them, shared by the tests of this folder."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.fixtures import running
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.settings import Settings
from tests.faults.real.load import QUICK, REPORTS, Load

sys.path.insert(0, str(Path(__file__).parents[2] / "trainer"))


@pytest.fixture(scope="package")
def brokers() -> Iterator[Kafka]:
    """Three nodes: each partition on all of them, acknowledged by two."""
    with running("kafka", lambda folder: Kafka(folder, nodes=3)) as engine:
        yield engine


@pytest.fixture(scope="package")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainer_makers import small_model

    return small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="package")
def stores() -> Iterator[Cassandra]:
    """Three nodes: each row on all of them, read and written with two."""
    with running("cassandra", lambda folder: Cassandra(folder, nodes=3)) as engine:
        yield engine


@pytest.fixture(scope="package")
def load(
    request: pytest.FixtureRequest, brokers: Kafka, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Load]:
    """The system on three brokers and three Cassandra nodes; with AGL_TEST_STORE=sqlite without the latter."""
    if os.geteuid() != 0:
        pytest.fail("the far host of these tests is a network namespace: run them as root", pytrace=False)
    store_url = ""
    if os.environ.get("AGL_TEST_STORE") != "sqlite":
        stores: Cassandra = request.getfixturevalue("stores")
        store_url = f"cassandra://{stores.contact_points}/faults?replication=3"
    settings = Settings(
        **QUICK,
        bootstrap_servers=brokers.bootstrap_servers,
        store_url=store_url,
        namespace="f" + uuid.uuid4().hex[:6],
        replication_factor=3,
    )
    with Load(settings, tmp_path_factory.mktemp("load"), model_dir, prepare_store=bool(store_url)) as started:
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not REPORTS:
        return
    terminalreporter.section("worst pause after each fault")
    for report in REPORTS:
        terminalreporter.write_line(
            f"{report.fault:<55} {report.without_rollout_seconds:6.1f} s without an ended rollout, "
            f"{report.without_step_seconds:6.1f} s without a step; {report.rollouts} rollouts so far"
        )
