"""Enqueue a task with nothing but a Kafka client and the schema file: no agl_stream import.

    python produce_task.py '{"question": "What is 17 + 25?"}'

Needs confluent-kafka[avro,schemaregistry]. Finds the system by AGL_STREAM_BOOTSTRAP_SERVERS, AGL_STREAM_REGISTRY_URL
and AGL_STREAM_NAMESPACE (default agl), and the schema by ROLLOUT_REQUESTED_AVSC (default: this repository's).
"""

import json
import os
import sys
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "avsc" / "rollout_requested" / "v1.avsc"


def main() -> int:
    task = json.loads(sys.argv[1])
    topic = os.environ.get("AGL_STREAM_NAMESPACE", "agl") + ".rollout-requests"
    registry = SchemaRegistryClient({"url": os.environ.get("AGL_STREAM_REGISTRY_URL", "http://127.0.0.1:8081")})
    schema = Path(os.environ.get("ROLLOUT_REQUESTED_AVSC", SCHEMA)).read_text(encoding="utf-8")
    # the registry knows the schema already: a producer of another team looks it up and registers nothing
    serialize = AvroSerializer(registry, schema, conf={"auto.register.schemas": False})
    producer = Producer(
        {
            "bootstrap.servers": os.environ.get("AGL_STREAM_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
            "enable.idempotence": True,
            "message.timeout.ms": 30_000,
        }
    )

    # Everything but the input may be left out; the schema says what is then taken. A rollout_id of one's own makes
    # the request idempotent: sent twice, it is one rollout.
    rollout_id = "ro-" + uuid.uuid4().hex[:16]
    request = {"rollout_id": rollout_id, "input": json.dumps(task), "mode": "train"}
    failures = []
    producer.produce(
        topic,
        key=rollout_id,
        value=serialize(request, SerializationContext(topic, MessageField.VALUE)),
        on_delivery=lambda error, _: failures.append(error) if error else None,
    )
    if producer.flush(30) or failures:
        print(f"not delivered: {failures or 'no broker answers'}", file=sys.stderr)
        return 1
    print(rollout_id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
