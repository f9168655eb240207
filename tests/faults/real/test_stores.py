"""Cassandra nodes die under load, one and all of them; the sink goes on where it was, and nobody has to restart."""

from __future__ import annotations

import os
import time

import pytest

from agl_stream.infra.servers.cassandra import Cassandra
from tests.faults.real.load import Load

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400)]

OUTAGE_SECONDS = float(os.environ.get("AGL_TEST_OUTAGE_SECONDS", "20"))


def test_kill_of_a_node(load: Load, stores: Cassandra) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        stores.nodes[2].kill()
        load.progress(16)
        stores.nodes[2].start()
        stores.nodes[2].wait_ready()
        load.progress(4)
    load.settle("kill -9 of a Cassandra node of 3", since)


def test_whole_cluster_gone_and_back(load: Load, stores: Cassandra) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        for node in stores.nodes:
            node.kill()
        time.sleep(OUTAGE_SECONDS)  # how long the outage lasts is what is tested
        stores.start()
        load.progress(12)
    load.settle(f"all Cassandra nodes killed, back after {OUTAGE_SECONDS:g} s", since)
