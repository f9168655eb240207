"""The registry client against a real registry: ids, schemas, refusals, and what happens when it goes away."""

from __future__ import annotations

import copy

import pytest

from agl_stream.errors import EngineUnreachable, RegistryRefused, UnknownSchema
from agl_stream.schemas import events
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient


def test_two_processes_agree_on_ids_and_read_each_other(registry_url: str) -> None:
    writer, reader = RegistryClient(registry_url, namespace="pair"), RegistryClient(registry_url, namespace="pair")
    assert writer.register_all() == reader.register_all()
    framed = Codec(writer).encode("ControlRequested", {"rollout_id": "ro-1", "action": "cancel"})
    event_type, event = Codec(reader).decode(framed)
    assert (event_type, event["action"]) == ("ControlRequested", "cancel")


def test_without_registration_an_unknown_schema_names_the_command(registry_url: str) -> None:
    client = RegistryClient(registry_url, namespace="nobody", register=False)
    with pytest.raises(UnknownSchema, match="agl-stream schemas register"):
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
        RegistryClient(registry_url, namespace="strict").id_of("ControlRequested")


def test_no_registry_names_the_setting() -> None:
    client = RegistryClient("http://127.0.0.1:9", config={"timeout": 1, "max.retries": 0})
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_REGISTRY_URL"):
        client.id_of("SpanRecorded")
