"""Levels for all subjects and for one, and what each lets through."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from .conftest import B_OPTIONAL, B_REQUIRED, A, Registry, avro, refused


def test_the_default_level_is_the_declared_one_and_told(registry: Registry, client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == registry.behaviour.default_compatibility


@pytest.mark.parametrize(
    ("level", "added_optional", "added_required", "type_changed"),
    [
        ("FULL_TRANSITIVE", True, False, False),
        ("FULL", True, False, False),
        ("BACKWARD", True, False, False),
        ("BACKWARD_TRANSITIVE", True, False, False),
        ("FORWARD", True, True, False),
        ("FORWARD_TRANSITIVE", True, True, False),
        ("NONE", True, True, True),
    ],
)
def test_each_level_lets_through_what_it_says(
    client: SchemaRegistryClient,
    subject: str,
    level: str,
    added_optional: bool,
    added_required: bool,
    type_changed: bool,
) -> None:
    client.register_schema(subject, avro(A))
    client.set_compatibility(subject, level)
    assert client.get_compatibility(subject) == level
    candidates = {
        avro(A, B_OPTIONAL).schema_str: added_optional,
        avro(A, B_REQUIRED).schema_str: added_required,
        avro({"name": "a", "type": "string"}).schema_str: type_changed,
    }
    for text, compatible in candidates.items():
        assert client.test_compatibility(subject, Schema(str(text), "AVRO")) is compatible
        assert client.test_compatibility_all_versions(subject, Schema(str(text), "AVRO")) is compatible
        if not compatible:
            assert refused(lambda text=text: client.register_schema(subject, Schema(str(text), "AVRO"))) == (409, 409)


def test_transitive_levels_look_at_every_version(client: SchemaRegistryClient, subject: str) -> None:
    """The field b goes and comes back with another type: each step is fine, the first and the last are not."""
    steps = [avro(A, B_OPTIONAL), avro(A), avro(A, {"name": "b", "type": "int", "default": 0})]
    for name, level, taken in ((subject, "FULL", 3), (subject + "-transitive", "FULL_TRANSITIVE", 2)):
        client.register_schema(name, steps[0])
        client.set_compatibility(name, level)
        client.register_schema(name, steps[1])
        if taken == 3:
            client.register_schema(name, steps[2])
        else:
            assert refused(lambda name=name: client.register_schema(name, steps[2])) == (409, 409)
        assert len(client.get_versions(name)) == taken


def test_a_level_of_a_subject_can_be_taken_back(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    def assert_has_none() -> None:
        if registry.behaviour.own_level_is_told_apart:
            assert refused(lambda: client.get_compatibility(subject)) == (404, 40408)
        else:
            assert client.get_compatibility(subject) == client.get_compatibility()

    client.register_schema(subject, avro(A))
    assert_has_none()
    assert refused(lambda: client.set_compatibility(subject, "SOMETIMES"))[0] == registry.behaviour.unknown_level_status
    client.set_compatibility(subject, "BACKWARD")
    assert client.get_compatibility(subject) == "BACKWARD"
    client.delete_config(subject)
    assert_has_none()


def test_the_global_level_holds_for_subjects_without_one(client: SchemaRegistryClient, subject: str) -> None:
    before = client.get_compatibility()
    client.register_schema(subject, avro(A))
    try:
        client.set_compatibility(level="FORWARD")
        assert client.get_compatibility() == "FORWARD"
        client.register_schema(subject, avro(A, B_REQUIRED))
    finally:
        client.set_compatibility(level=before)
    assert client.get_compatibility() == before
