"""The compose file's check of Kafka has the broker do its work, and fails when it does not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from agl_stream.infra.servers.components import KAFKA
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.supervise import free_ports

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parents[2] / "infra" / "compose" / "health" / "kafka.sh"
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-verifiable-producer.sh": "org.apache.kafka.tools.VerifiableProducer",
}


@pytest.fixture
def tools(kafka: Kafka, tmp_path: Path) -> Path:
    """Kafka's own tools, as its image has them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    jars = EnginesHome.default().folder(KAFKA) / "lib"
    for name, main in TOOLS.items():
        tool = folder / name
        tool.write_text(f'#!/bin/bash\nexec java $KAFKA_HEAP_OPTS -cp "{jars}/*" {main} "$@"\n')
        tool.chmod(0o755)
    return folder


def check(servers: str, tools: Path, seconds: float) -> int | None:
    """The exit status; None when the check is still waiting, which Docker takes for a failure."""
    environment = os.environ | {"KAFKA_TOOLS": str(tools), "TMPDIR": str(tools)}
    process = subprocess.Popen(["bash", str(SCRIPT), servers], env=environment, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def test_a_check_is_an_acknowledged_record(kafka: Kafka, tools: Path) -> None:
    assert check(kafka.bootstrap_servers, tools, 60) == 0
    assert check(kafka.bootstrap_servers, tools, 60) == 0
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "health"})
    assert reader.get_watermark_offsets(TopicPartition("agl-health", 0), 30) == (0, 2)
    reader.close()


def test_no_broker_is_no_health(tools: Path) -> None:
    assert check(f"127.0.0.1:{free_ports(1)[0]}", tools, 10) != 0
