"""Makes strimzi.json from Strimzi's own API classes, fetched by Maven: ``python make.py [TARGET]``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from agl_stream.infra.servers.components import copy_dependencies
from agl_stream.infra.servers.tools import java

HERE = Path(__file__).parent
MODEL = "io.strimzi.api.kafka.model"
KINDS = (
    "kafka.Kafka",
    "nodepool.KafkaNodePool",
    "topic.KafkaTopic",
    "user.KafkaUser",
    "connect.KafkaConnect",
    "connector.KafkaConnector",
)


def strimzi_schema() -> str:
    """The schema's text. Raises ToolMissing, FetchFailed, CalledProcessError when Maven or Java fail."""
    with tempfile.TemporaryDirectory() as folder:
        copy_dependencies(HERE / "pom.xml", Path(folder))
        kinds = [f"{MODEL}.{kind}" for kind in KINDS]
        command = [java(), "-cp", f"{folder}/*", str(HERE / "StrimziSchemas.java"), *kinds]
        out = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout
    return json.dumps(json.loads(out), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "strimzi.json").write_text(strimzi_schema())
