"""The registry client against a real registry: ids, schemas, refusals, and what happens when it goes away."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from agl_stream import connections
from agl_stream.errors import EngineUnreachable, RegistryRefused, UnknownSchema
from agl_stream.schemas import events
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient
from agl_stream.settings import Settings


def test_two_processes_agree_on_ids_and_read_each_other(registry_url: str) -> None:
    writer, reader = RegistryClient(registry_url, namespace="pair"), RegistryClient(registry_url, namespace="pair")
    assert writer.register_all() == reader.register_all()
    framed = Codec(writer).encode("ControlRequested", {"rollout_id": "ro-1", "action": "cancel"})
    event_type, event = Codec(reader).decode(framed)
    assert (event_type, event["action"]) == ("ControlRequested", "cancel")


def test_without_registration_an_unknown_schema_names_the_command(registry_url: str) -> None:
    client = RegistryClient(registry_url, namespace="nobody")
    with pytest.raises(UnknownSchema, match="agl-stream schemas apply"):
        client.id_of("SpanRecorded")


def test_unknown_id_is_unknown_and_not_unreachable(registry_url: str) -> None:
    with pytest.raises(UnknownSchema):
        RegistryClient(registry_url).schema_of(999_999)


def test_an_incompatible_schema_is_refused(registry_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RegistryClient(registry_url, namespace="strict").register_all()
    broken = copy.deepcopy(events.current("ControlRequested"))
    broken["fields"].append({"name": "urgency", "type": "int", "doc": "No default."})
    monkeypatch.setattr(events, "current", lambda _: broken)
    with pytest.raises(RegistryRefused):
        RegistryClient(registry_url, namespace="strict", register=True).id_of("ControlRequested")


def test_no_registry_names_the_setting() -> None:
    client = RegistryClient("http://127.0.0.1:9", config={"timeout": 1, "max.retries": 0})
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_REGISTRY_URL"):
        client.id_of("SpanRecorded")


def test_registration_is_off_unless_the_setting_says_otherwise(registry_url: str) -> None:
    settings = Settings(registry_url=registry_url, namespace="by-setting")
    assert not settings.register_schemas
    with pytest.raises(UnknownSchema):
        connections.registry_client(settings).id_of("ControlRequested")
    assert connections.registry_client(replace(settings, register_schemas=True)).id_of("ControlRequested") > 0


def test_subjects_are_held_to_our_promise_where_the_registry_asks_for_less(registry_url: str) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    registry = SchemaRegistryClient({"url": registry_url})
    subject = "lax.controls-value"
    registry.set_compatibility(subject, "NONE")
    RegistryClient(registry_url, namespace="lax").register_all()
    assert registry.get_compatibility(subject) == "FULL_TRANSITIVE"
