"""The documentation says what the suite does, and the suite declares what is so."""

from __future__ import annotations

import inspect
import os

import aiokafka.admin
import kafka.codec
import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.kafka.clients.port import Ability
from tests.conformance.kafka.declare import CLIENTS
from tests.conformance.kafka.table import DOCUMENT, HERE, MODULES, WRITE_VARIABLE, cases, render

FEWEST_CASES = 80
ON_PURPOSE = (
    "consumer_group_protocol",
    "fetch_sessions",
    "log_append_time",
    "reads_records",
    "largest_time_of_what_is_left",
)
"""Capabilities in which engines differ; the others are times."""


def test_the_document_is_what_the_cases_declare():
    if os.environ.get(WRITE_VARIABLE):
        DOCUMENT.write_text(render())
    assert DOCUMENT.read_text() == render(), f"write it anew with {WRITE_VARIABLE}=1"


def test_every_module_of_cases_is_in_the_document():
    written = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")}
    assert written == {*MODULES, "table"}
    assert len(list(cases())) >= FEWEST_CASES


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.title)
def test_a_case_that_looks_at_what_differs_declares_it(case):
    source = inspect.getsource(case.function)
    looks = any(f"capabilities.{name}" in source for name in ON_PURPOSE)
    assert not looks or case.declaration.differs
    assert not case.declaration.differs or "capabilities." in source
    assert case.uses != "client" or case.declaration.clients(), "no client can run it"


def test_what_clients_lack_they_lack():
    """A release that brings the ability makes this fail, and then the cases are run with it."""
    lacks = {client.name: client.lacks for client in CLIENTS}
    for name in ("delete_consumer_group_offsets", "delete_group_offsets", "remove_members_from_consumer_group"):
        assert not hasattr(AdminClient, name)
    admin = aiokafka.admin.AIOKafkaAdminClient
    absent = {
        Ability.DELETE_GROUPS: "delete_consumer_groups",
        Ability.ALTER_OFFSETS: "alter_consumer_group_offsets",
        Ability.DELETE_OFFSETS: "delete_consumer_group_offsets",
        Ability.OFFSETS_BY_ADMIN: "list_offsets",
        Ability.INCREMENTAL_CONFIGS: "incremental_alter_configs",
        Ability.REMOVE_MEMBERS: "remove_members_from_consumer_group",
    }
    assert set(absent) <= set(lacks["aiokafka"])
    assert not any(hasattr(admin, name) for name in absent.values())
    assert Ability.ALL_CODECS in lacks["kafka-python"]
    assert not (kafka.codec.has_snappy() and kafka.codec.has_lz4() and kafka.codec.has_zstd())
