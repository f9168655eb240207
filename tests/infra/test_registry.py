"""The registry through Confluent's client, its errors as Confluent's, its state across restarts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.registry.service import EmbeddedRegistry
from agl_stream.infra.embedded.registry.store import RegistryError, SchemaStore


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


def test_the_same_schema_has_one_id(client, subject):
    first = client.register_schema(subject, avro(A))
    spaced = Schema(json.dumps(json.loads(avro(A).schema_str), indent=4, sort_keys=True), "AVRO")
    assert client.register_schema(subject, spaced) == first
    assert client.register_schema(subject + "-other", avro(A)) == first
    second = client.register_schema(subject, avro(A, B_OPTIONAL))
    assert second != first
    assert client.get_versions(subject) == [1, 2]
    assert json.loads(client.get_schema(second).schema_str) == json.loads(avro(A, B_OPTIONAL).schema_str)


def test_versions_are_looked_up_by_number_schema_and_latest(client, subject):
    ids = [client.register_schema(subject, schema) for schema in (avro(A), avro(A, B_OPTIONAL))]
    assert client.get_latest_version(subject).schema_id == ids[1]
    assert client.get_version(subject, 1).schema_id == ids[0]
    found = client.lookup_schema(subject, avro(A))
    assert (found.subject, found.version, found.schema_id) == (subject, 1, ids[0])
    assert subject in client.get_subjects()
    assert subject in client.get_subjects_by_schema_id(ids[1])
    assert {(use.subject, use.version) for use in client.get_schema_versions(ids[1])} >= {(subject, 2)}


def test_what_is_not_there_is_answered_with_confluents_codes(client, subject):
    assert refused(lambda: client.get_latest_version("nobody")) == (404, 40401)
    assert refused(lambda: client.get_versions("nobody")) == (404, 40401)
    assert refused(lambda: client.get_schema(999_999)) == (404, 40403)
    client.register_schema(subject, avro(A))
    assert refused(lambda: client.get_version(subject, 9)) == (404, 40402)
    assert refused(lambda: client.get_version(subject, "soon")) == (422, 42202)
    assert refused(lambda: client.lookup_schema(subject, avro(A, B_OPTIONAL))) == (404, 40403)


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


@pytest.mark.parametrize(
    ("level", "added_optional", "added_required", "type_changed"),
    [
        (None, True, False, False),
        ("FULL_TRANSITIVE", True, False, False),
        ("FULL", True, False, False),
        ("BACKWARD", True, False, False),
        ("FORWARD", True, True, False),
        ("NONE", True, True, True),
    ],
)
def test_compatibility_levels(client, subject, level, added_optional, added_required, type_changed):
    client.register_schema(subject, avro(A))
    if level is not None:
        client.set_compatibility(subject, level)
        assert client.get_compatibility(subject) == level
    candidates = {
        avro(A, B_OPTIONAL).schema_str: added_optional,
        avro(A, B_REQUIRED).schema_str: added_required,
        avro({"name": "a", "type": "string"}).schema_str: type_changed,
    }
    for text, compatible in candidates.items():
        assert client.test_compatibility(subject, Schema(text, "AVRO")) is compatible
        assert client.test_compatibility_all_versions(subject, Schema(text, "AVRO")) is compatible
        if not compatible:
            assert refused(lambda text=text: client.register_schema(subject, Schema(text, "AVRO"))) == (409, 409)


def test_transitive_levels_look_at_every_version(client, subject):
    """The field b goes and comes back with another type: each step is fine, the first and the last are not."""
    steps = [
        avro(A, B_OPTIONAL),
        avro(A),
        avro(A, {"name": "b", "type": "int", "default": 0}),
    ]
    client.set_compatibility(subject, "FULL")
    for schema in steps:
        client.register_schema(subject, schema)
    other = subject + "-transitive"
    client.register_schema(other, steps[0])
    client.register_schema(other, steps[1])
    assert refused(lambda: client.register_schema(other, steps[2])) == (409, 409)


def test_levels_are_set_per_subject_and_globally(registry_url, client, subject):
    assert client.get_compatibility() == "FULL_TRANSITIVE"
    assert refused(lambda: client.get_compatibility(subject)) == (404, 40408)
    assert refused(lambda: client.set_compatibility(subject, "SOMETIMES")) == (422, 42203)
    client.set_compatibility(subject, "BACKWARD")
    assert http(f"{registry_url}/config/{subject.replace('/', '%2F')}", "DELETE") == (
        200,
        {"compatibilityLevel": "BACKWARD"},
    )
    assert refused(lambda: client.get_compatibility(subject)) == (404, 40408)


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


def test_modes(registry_url, subject):
    client = SchemaRegistryClient({"url": registry_url})
    assert client.get_global_mode() == "READWRITE"
    client.register_schema(subject, avro(A))
    client.update_mode(subject, "READONLY")
    assert client.get_mode(subject) == "READONLY"
    fresh = SchemaRegistryClient({"url": registry_url})
    assert refused(lambda: fresh.register_schema(subject, avro(A, B_OPTIONAL))) == (403, 42205)
    assert fresh.register_schema(subject, avro(A)) > 0
    client.delete_mode(subject)
    assert fresh.register_schema(subject, avro(A, B_OPTIONAL)) > 0


def test_serializer_and_deserializer_work_unchanged(client, subject):
    schema = avro(A, B_OPTIONAL).schema_str
    serializer = AvroSerializer(client, schema)
    context = SerializationContext("topic-of-serializer", MessageField.VALUE)
    data = serializer({"a": 1, "b": "x"}, context)
    assert data[0] == 0
    deserializer = AvroDeserializer(SchemaRegistryClient(client.config()), None)
    assert deserializer(data, context) == {"a": 1, "b": "x"}


def test_unknown_paths_and_methods_are_json_errors(registry_url):
    for path in ("/associations/resources/x", "/schemas/guids/abc", "/nothing", "/subjects/a/b/c/d"):
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
        assert (caught.value.status, caught.value.code) == (403, 42205)
