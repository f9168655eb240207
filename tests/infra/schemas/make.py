"""Makes strimzi.json from Strimzi's own API classes, fetched by Maven: ``python make.py [TARGET]``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

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
    """The schema's text. Raises CalledProcessError when Maven or Java fail."""
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["mvn", "-q", "-B", "-ntp", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*fetch, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"], check=True, timeout=300)
        kinds = [f"{MODEL}.{kind}" for kind in KINDS]
        java = ["java", "-cp", f"{folder}/*", str(HERE / "StrimziSchemas.java"), *kinds]
        out = subprocess.run(java, check=True, capture_output=True, timeout=120).stdout
    return json.dumps(json.loads(out), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "strimzi.json").write_text(strimzi_schema())
