"""Each case runs on the embedded registry and on Apicurio's Confluent-compatible interface (mark `engines`)."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from .differences import DECLARED, Behaviour


class Registry:
    """A registry under test: its address, and what is declared of it."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.behaviour: Behaviour = DECLARED[name]

    def client(self) -> SchemaRegistryClient:
        """A client without anything in its caches."""
        return SchemaRegistryClient({"url": self.url, "max.retries": 0})


@pytest.fixture(params=["embedded", pytest.param("apicurio", marks=pytest.mark.engines)])
def registry(request: pytest.FixtureRequest) -> Registry:
    if request.param == "embedded":
        return Registry("embedded", request.getfixturevalue("registry_url"))
    return Registry("apicurio", request.getfixturevalue("apicurio").ccompat_url)


@pytest.fixture
def client(registry: Registry) -> SchemaRegistryClient:
    return registry.client()


@pytest.fixture
def subject() -> str:
    """A subject of its own for each test, with a character that must be escaped in the path."""
    return f"agl/{time.time_ns()}-value"


def avro(*fields: dict[str, Any], name: str = "Thing") -> Schema:
    return Schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}), "AVRO")


A = {"name": "a", "type": "int"}
B_OPTIONAL = {"name": "b", "type": "string", "default": ""}
B_REQUIRED = {"name": "b", "type": "string"}


def refused(call: Callable[[], object]) -> tuple[int, int]:
    """HTTP status and error code with which a call is refused."""
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    return caught.value.http_status_code, caught.value.error_code


def http(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON answer of a request that no client would send."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, text.decode(errors="replace")
