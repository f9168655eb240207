"""Brokers die under load, one after the other and two at once; what was acknowledged is there afterwards, once."""

from __future__ import annotations

import time

import pytest

from agl_stream.infra.servers.kafka import Kafka
from tests.faults.real.load import Load

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_kill_of_a_broker(load: Load, brokers: Kafka, victim: int) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        brokers.nodes[victim].kill()
        load.progress(12)
        brokers.nodes[victim].start()
        brokers.nodes[victim].wait_ready()
        load.progress(4)
    load.settle(f"kill -9 of broker {victim + 1} of 3", since)


def test_quorum_lost_and_back(load: Load, brokers: Kafka) -> None:
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        for node in brokers.nodes[:2]:
            node.kill()
        time.sleep(8)  # how long the outage lasts is what is tested
        for node in brokers.nodes[:2]:
            node.start()
        for node in brokers.nodes[:2]:
            node.wait_ready()
        load.progress(12)
    load.settle("2 of 3 brokers killed, back after 8 s", since)
