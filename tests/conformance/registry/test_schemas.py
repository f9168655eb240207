"""Registering, and finding again by id, version and text."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from .conftest import B_OPTIONAL, A, Registry, avro, refused


def test_the_same_schema_has_one_id(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    first = client.register_schema(subject, avro(A))
    assert registry.client().register_schema(subject, avro(A)) == first
    assert client.register_schema(subject + "-other", avro(A)) == first
    second = client.register_schema(subject, avro(A, B_OPTIONAL))
    assert second != first
    assert client.get_versions(subject) == [1, 2]
    assert json.loads(registry.client().get_schema(second).schema_str) == json.loads(avro(A, B_OPTIONAL).schema_str)


def test_spacing_makes_no_other_schema(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    first = client.register_schema(subject, avro(A))
    spaced = Schema(json.dumps(json.loads(avro(A).schema_str), indent=4), "AVRO")
    assert (client.register_schema(subject, spaced) == first) is registry.behaviour.spacing_is_ignored
    assert registry.client().get_versions(subject) == ([1] if registry.behaviour.spacing_is_ignored else [1, 2])


def test_versions_are_found_by_number_schema_and_latest(client: SchemaRegistryClient, subject: str) -> None:
    ids = [client.register_schema(subject, schema) for schema in (avro(A), avro(A, B_OPTIONAL))]
    assert client.get_latest_version(subject).schema_id == ids[1]
    assert client.get_version(subject, 1).schema_id == ids[0]
    found = client.lookup_schema(subject, avro(A))
    assert (found.subject, found.version, found.schema_id) == (subject, 1, ids[0])


def test_the_uses_of_a_schema_are_told(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    schema = avro(A, name=f"T{uuid.uuid4().hex}")
    schema_id = client.register_schema(subject, schema)
    client.register_schema(subject + "-other", schema)
    assert subject in client.get_subjects()
    assert client.get_referenced_by(subject, 1) == []
    assert "AVRO" in client.get_schema_types()
    if registry.behaviour.tells_uses:
        assert sorted(client.get_subjects_by_schema_id(schema_id)) == [subject, subject + "-other"]
        uses = {(use.subject, use.version) for use in client.get_schema_versions(schema_id)}
        assert uses == {(subject, 1), (subject + "-other", 1)}
        assert client.get_subjects(subject_prefix=subject) == [subject, subject + "-other"]
    else:
        assert refused(lambda: client.get_subjects_by_schema_id(schema_id))[0] == 404


def test_what_is_not_there_has_confluents_codes(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    assert refused(lambda: client.get_latest_version("nobody")) == (404, 40401)
    assert refused(lambda: client.get_versions("nobody")) == (404, 40401)
    assert refused(lambda: client.get_schema(999_999_999)) == (404, 40403)
    assert refused(lambda: client.lookup_schema("nobody", avro(A))) == (404, 40401)
    client.register_schema(subject, avro(A))
    assert refused(lambda: client.get_version(subject, 9)) == (404, 40402)
    no_number: int = "soon"  # pyright: ignore[reportAssignmentType]
    assert refused(lambda: client.get_version(subject, no_number)) == registry.behaviour.version_that_is_no_number
    assert refused(lambda: client.lookup_schema(subject, avro(A, B_OPTIONAL))) == (404, 40403)


@pytest.mark.parametrize(
    "schema",
    [
        "not json",
        '{"type": "record"}',
        '"nothing"',
        '{"type":"record","name":"X","fields":[{"name":"a"}]}',
    ],
)
def test_invalid_schemas_are_refused(client: SchemaRegistryClient, subject: str, schema: str) -> None:
    assert refused(lambda: client.register_schema(subject, Schema(schema, "AVRO"))) == (422, 42201)
    assert subject not in client.get_subjects()


def test_our_events_all_register_and_are_found(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    from agl_stream.schemas import events

    for event_type in events.EVENT_TYPES:
        for version in events.history(event_type):
            text = json.dumps(version)
            schema_id = client.register_schema(f"{subject}.{event_type}", Schema(text, "AVRO"))
            assert (
                registry.client().lookup_schema(f"{subject}.{event_type}", Schema(text, "AVRO")).schema_id == schema_id
            )
            assert json.loads(registry.client().get_schema(schema_id).schema_str) == version
