"""confluent-kafka's Avro serializers, and our own codec, unchanged on either registry."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from agl_stream.errors import UnknownSchema
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient

from .conftest import B_OPTIONAL, A, Registry, avro


def context(subject: str) -> SerializationContext:
    return SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)


def test_confluents_serializers_work_unchanged(registry: Registry, subject: str) -> None:
    serialize = AvroSerializer(registry.client(), str(avro(A, B_OPTIONAL).schema_str))
    data = serialize({"a": 1, "b": "x"}, context(subject))
    assert data is not None and data[0] == 0
    assert AvroDeserializer(registry.client(), None)(data, context(subject)) == {"a": 1, "b": "x"}


def test_a_serializer_that_may_not_register_finds_what_is_there(registry: Registry, subject: str) -> None:
    schema = avro(A)
    serialize = AvroSerializer(registry.client(), str(schema.schema_str), conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError):
        serialize({"a": 1}, context(subject))
    registry.client().register_schema(subject, schema)
    assert serialize({"a": 1}, context(subject))


def test_our_events_go_through_it(registry: Registry, subject: str) -> None:
    namespace = subject.removesuffix("-value").replace("/", "-")
    RegistryClient(registry.url, namespace=namespace).register_all()
    framed = Codec(RegistryClient(registry.url, namespace=namespace, register=False)).encode(
        "ControlRequested", {"rollout_id": "ro-1", "action": "cancel"}
    )
    event_type, event = Codec(RegistryClient(registry.url, namespace=namespace)).decode(framed)
    assert (event_type, event["rollout_id"], event["action"]) == ("ControlRequested", "ro-1", "cancel")


def test_a_confluent_reader_reads_our_events(registry: Registry, subject: str) -> None:
    namespace = subject.removesuffix("-value").replace("/", "-")
    client = RegistryClient(registry.url, namespace=namespace)
    client.register_all()
    framed = Codec(client).encode("ControlRequested", {"rollout_id": "ro-1", "action": "cancel"})
    read = AvroDeserializer(registry.client(), None)(framed, context(f"{namespace}.controls-value"))
    assert isinstance(read, dict) and read["rollout_id"] == "ro-1"


def test_an_unknown_id_is_unknown(registry: Registry) -> None:
    with pytest.raises(UnknownSchema):
        RegistryClient(registry.url).schema_of(999_999_999)
