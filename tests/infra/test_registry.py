"""What the embedded registry does beyond the suite of tests/conformance/registry: limits, bad input, restarts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from agl_stream.errors import RegistryRefused
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.registry.service import EmbeddedRegistry
from agl_stream.infra.embedded.registry.store import RegistryError, SchemaStore
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.schemas.registry import RegistryClient


def avro(*fields: dict, name: str = "Thing") -> Schema:
    return Schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}), "AVRO")


A = {"name": "a", "type": "int"}
B_OPTIONAL = {"name": "b", "type": "string", "default": ""}
B_REQUIRED = {"name": "b", "type": "string"}


@pytest.fixture
def client(registry_url):
    return SchemaRegistryClient({"url": registry_url})


@pytest.fixture
def subject(request):
    """A subject of its own for each test, with a character that must be escaped in the path."""
    return f"agl/{request.node.name}-value"


def refused(call) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    return caught.value.http_status_code, caught.value.error_code


def http(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, object]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    "schema",
    [
        "not json",
        '{"type": "record"}',
        '"nothing"',
        "[" * 5_000,
        '{"type":"record","name":"X","fields":[{"name":"a"}]}',
    ],
)
def test_invalid_schemas_are_refused(client, subject, schema):
    assert refused(lambda: client.register_schema(subject, Schema(schema, "AVRO"))) == (422, 42201)
    assert subject not in client.get_subjects()


def test_other_schema_types_and_references_are_refused(registry_url, client, subject):
    assert refused(lambda: client.register_schema(subject, Schema("{}", "JSON"))) == (422, 42201)
    body = {"schema": '"string"', "references": [{"name": "x", "subject": "y", "version": 1}]}
    status, answer = http(f"{registry_url}/subjects/x/versions", "POST", json.dumps(body).encode())
    assert (status, answer["error_code"]) == (422, 42201)


def test_deletion_is_soft_then_permanent_and_never_reuses_numbers(client, subject):
    first = client.register_schema(subject, avro(A))
    second = client.register_schema(subject, avro(A, B_OPTIONAL))
    assert refused(lambda: client.delete_version(subject, 1, permanent=True)) == (404, 40407)
    assert client.delete_version(subject, 1) == 1
    assert client.get_versions(subject) == [2]
    assert refused(lambda: client.delete_version(subject, 1)) == (404, 40406)
    assert client.delete_version(subject, 1, permanent=True) == 1
    assert refused(lambda: client.delete_subject(subject, permanent=True)) == (404, 40405)
    # the client's own permanent deletion does both steps
    fresh = SchemaRegistryClient(client.config())
    assert fresh.delete_subject(subject) == [2]
    assert refused(lambda: fresh.get_versions(subject)) == (404, 40401)
    assert json.loads(fresh.get_schema(first).schema_str) == json.loads(avro(A).schema_str)
    again = SchemaRegistryClient(client.config())
    assert again.register_schema(subject, avro(A, B_OPTIONAL)) == second
    assert again.get_versions(subject) == [3]


def test_unknown_paths_and_methods_are_json_errors(registry_url):
    for path in ("/associations/resources/x", "/nothing", "/subjects/a/b/c/d"):
        status, answer = http(registry_url + path)
        assert (status, answer["error_code"]) == (404, 404)
    status, answer = http(registry_url + "/subjects", "PUT", b"{}")
    assert (status, answer["error_code"]) == (405, 405)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[]", 422), (b"{}", 422), (b'{"schema": 5}', 422), (b"x" * 1_100_000, 413)],
)
def test_bad_bodies_are_refused(registry_url, body, status):
    answered, answer = http(f"{registry_url}/subjects/bad/versions", "POST", body)
    assert answered == status and answer["error_code"] > 0


async def test_everything_survives_a_restart(tmp_path):
    path = tmp_path / "registry.jsonl"
    store = SchemaStore(path)
    ids = [store.register("s", schema.schema_str) for schema in (avro(A), avro(A, B_OPTIONAL))]
    store.delete_version("s", "1", permanent=False)
    store.set_level("t", "NONE")
    store.set_mode("t", "READONLY")
    again = SchemaStore(path)
    assert again.versions("s") == [2] and again.versions("s", deleted=True) == [1, 2]
    assert again.register("s", avro(A, B_OPTIONAL).schema_str) == ids[1]
    assert again.register("other", avro(A).schema_str) == ids[0]
    assert (again.level("t"), again.mode("t"), again.level()) == ("NONE", "READONLY", "FULL_TRANSITIVE")
    new = again.register("new", avro(A, name="New").schema_str)
    assert new not in ids


def test_a_torn_last_line_is_cut_and_damage_before_it_is_an_error(tmp_path):
    path = tmp_path / "registry.jsonl"
    store = SchemaStore(path)
    store.register("s", avro(A).schema_str)
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'["schema",2,"{')
    again = SchemaStore(path)
    assert again.subjects() == ["s"]
    assert path.read_bytes() == whole
    again.close()
    path.write_bytes(b"rubbish\n" + whole)
    with pytest.raises(DamagedFile, match="line 1"):
        SchemaStore(path)


async def test_a_read_only_registry_serves_and_refuses(tmp_path):
    async with EmbeddedRegistry(tmp_path) as registry:
        assert registry.url.startswith("http://127.0.0.1:")
    store = SchemaStore(tmp_path / "registry.jsonl")
    schema_id = store.register("s", avro(A).schema_str)
    store.close()
    read_only = SchemaStore(tmp_path / "registry.jsonl", read_only=True)
    assert read_only.register("s", avro(A).schema_str) == schema_id
    for change in (
        lambda: read_only.register("s", avro(A, B_OPTIONAL).schema_str),
        lambda: read_only.delete_subject("s", False),
        lambda: read_only.set_level(None, "NONE"),
        lambda: read_only.set_mode(None, "READWRITE"),
    ):
        with pytest.raises(RegistryError) as caught:
            change()
        assert (caught.value.status, caught.value.code) == (422, 42205)


def test_a_level_can_be_taken_back_and_says_what_it_was(registry_url, client, subject):
    client.set_compatibility(subject, "BACKWARD")
    path = f"{registry_url}/config/{subject.replace('/', '%2F')}"
    assert http(path, "DELETE") == (200, {"compatibilityLevel": "BACKWARD"})
    body = json.dumps({"compatibility": "FULL", "normalize": True}).encode()
    assert http(path, "PUT", body)[0] == 422


def test_lists_come_in_pages_and_with_what_was_deleted(client, subject):
    for fields in ([A], [A, B_OPTIONAL]):
        client.register_schema(subject, avro(*fields))
    assert client.get_versions(subject, offset=1) == [2]
    assert client.get_versions(subject, limit=1) == [1]
    client.delete_version(subject, 1)
    assert client.get_versions(subject, deleted_only=True) == [1]
    client.delete_subject(subject)
    assert client.get_subjects(subject_prefix=subject, deleted_only=True) == [subject]
    assert client.get_subjects(subject_prefix=subject) == []
    assert client.get_contexts() == ["."]


def test_a_refused_registration_names_the_remedy(tmp_path):
    """Also through our own client: an operator who forbade registration reads how to allow it again."""
    with BrokerThread(tmp_path, registry=True) as thread:
        SchemaRegistryClient({"url": thread.registry_url}).update_global_mode("READONLY")
        with pytest.raises(RegistryRefused, match="PUT /mode with mode READWRITE"):
            RegistryClient(thread.registry_url).register_all()
        SchemaRegistryClient({"url": thread.registry_url}).update_global_mode("READWRITE")
        assert RegistryClient(thread.registry_url).register_all()
