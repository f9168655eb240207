"""Newer look-ups of clients, and what no client would send: refused with a code, never a fault of the server."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from .conftest import B_OPTIONAL, A, Registry, avro, http, refused


def test_look_ups_of_newer_clients_are_unknown_and_no_fault(client: SchemaRegistryClient, subject: str) -> None:
    client.register_schema(subject, avro(A))
    calls = [
        lambda: client.get_associations_by_resource_name("topic", "-", "topic", ["value"]),
        lambda: client.get_schema_by_guid("6c1f3b2e-0d5b-4c1e-9c9a-5b6f0d5c1f3b"),
        lambda: client.get_latest_with_metadata(subject, {"owner": "us"}),
    ]
    for call in calls:
        assert refused(call)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/associations/resources/-/topic",
        "/schemas/guids/abc",
        "/schemas/ids/x",
        "/schemas/ids/-1",
        "/schemas/ids/99999999999999999999",
        "/subjects/nobody/versions/99999999999999999999",
        "/subjects/nobody/versions/-7",
        "/subjects/%00/versions",
        "/subjects/a/b/c/d",
        "/nothing",
    ],
)
def test_odd_paths_are_the_askers_fault(registry: Registry, path: str) -> None:
    status, _ = http(registry.url + path)
    assert 400 <= status < 500


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"schema": 5}',
        b'{"schema": null}',
        b"\xff\xfe",
        json.dumps({"schema": "[" * 5_000}).encode(),
        json.dumps({"schema": '"string"', "references": [{"name": "x", "subject": "y", "version": 1}]}).encode(),
    ],
)
def test_odd_bodies_are_the_askers_fault(registry: Registry, body: bytes) -> None:
    status, _ = http(f"{registry.url}/subjects/bad/versions", "POST", body)
    assert 400 <= status < 500
    assert http(registry.url + "/subjects")[0] == 200


def test_an_unknown_type_of_schema_is_refused(registry: Registry) -> None:
    body = json.dumps({"schema": '"string"', "schemaType": "NONSENSE"}).encode()
    status, _ = http(f"{registry.url}/subjects/bad/versions", "POST", body)
    assert (status == 500) if registry.behaviour.fails_on_unknown_types else (400 <= status < 500)


def test_registration_can_be_forbidden(registry: Registry, client: SchemaRegistryClient, subject: str) -> None:
    schema_id = client.register_schema(subject, avro(A))
    if not registry.behaviour.has_modes:
        assert refused(client.get_global_mode)[0] == 404
        assert refused(lambda: client.update_mode(subject, "READONLY"))[0] == 404
        return
    assert client.get_global_mode() == "READWRITE"
    client.update_mode(subject, "READONLY")
    assert client.get_mode(subject) == "READONLY"
    assert refused(lambda: registry.client().register_schema(subject, avro(A, B_OPTIONAL))) == (422, 42205)
    assert registry.client().register_schema(subject, avro(A)) == schema_id
    client.delete_mode(subject)
    assert registry.client().register_schema(subject, avro(A, B_OPTIONAL)) > 0
