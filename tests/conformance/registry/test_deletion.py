"""Deletion is soft first, then permanent, and never gives a number or an id again."""

from __future__ import annotations

import json

from confluent_kafka.schema_registry import SchemaRegistryClient

from .conftest import B_OPTIONAL, A, Registry, avro, refused


def test_a_deleted_version_is_hidden_and_its_schema_stays(
    registry: Registry, client: SchemaRegistryClient, subject: str
) -> None:
    first = client.register_schema(subject, avro(A))
    client.register_schema(subject, avro(A, B_OPTIONAL))
    assert client.delete_version(subject, 1) == 1
    fresh = registry.client()
    assert fresh.get_versions(subject) == [2]
    # Records written with it can still be read.
    assert json.loads(fresh.get_schema(first).schema_str) == json.loads(avro(A).schema_str)


def test_a_deleted_subject_is_unknown(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    client.register_schema(subject, avro(A))
    assert client.delete_subject(subject) == [1]
    fresh = registry.client()
    assert refused(lambda: fresh.get_versions(subject)) == (404, 40401)
    assert subject not in fresh.get_subjects()
    assert subject in fresh.get_subjects(deleted=True)


def test_permanent_deletion_needs_a_soft_one(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    client.register_schema(subject, avro(A))
    client.register_schema(subject, avro(A, B_OPTIONAL))
    expected = registry.behaviour.hard_deletion_of_a_live_version
    assert refused(lambda: client.delete_version(subject, 1, permanent=True)) == expected
    assert client.get_versions(subject) == [1, 2]
    assert client.delete_version(subject, 1) == 1
    assert client.delete_version(subject, 1, permanent=True) == 1
    assert registry.client().get_versions(subject) == [2]


def test_numbers_are_not_given_again(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    client.register_schema(subject, avro(A))
    second = client.register_schema(subject, avro(A, B_OPTIONAL))
    client.delete_version(subject, 2)
    again = registry.client()
    assert again.register_schema(subject, avro(A, B_OPTIONAL)) == second
    assert again.get_versions(subject) == [1, 3]
