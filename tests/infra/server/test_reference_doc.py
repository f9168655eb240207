"""What the documentation says of APIs and metrics is what the code does."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import kio.schema
import pytest

from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.protocol.unspoken import UNSPOKEN
from agl_stream.infra.embedded.server.handlers import HANDLERS
from agl_stream.infra.embedded.server.reference_doc import with_current_tables

DOCUMENT = Path(__file__).parents[3] / "docs" / "embedded-broker.md"


def test_the_tables_are_current():
    document = DOCUMENT.read_text()
    command = "python -m agl_stream.infra.embedded.server.reference_doc docs/embedded-broker.md"
    assert with_current_tables(document) == document, f"run: {command}"


def test_every_api_has_a_handler_and_every_handler_an_api():
    assert {api.name for api in APIS.values()} == set(HANDLERS)


def test_every_api_of_kafka_is_spoken_or_named_as_not_spoken():
    """kio has the definitions of all: no API of Kafka is met without a decision."""
    known: dict[int, str] = {}
    for folder in Path(next(iter(kio.schema.__path__))).iterdir():
        for source in folder.glob("v*/request.py"):
            found = re.search(r"__api_key__: ClassVar\[i16\] = i16\((\d+)\)", source.read_text())
            if found:
                known[int(found[1])] = folder.name
    assert len(known) > 80
    assert set(known) == set(APIS) | set(UNSPOKEN)
    for key, name in UNSPOKEN.items():
        assert known[key].replace("_", "") == name.lower()


@pytest.mark.parametrize("key", [71, 55, 12345])
def test_an_api_that_is_not_spoken_closes_the_connection_with_its_name(connect, bootstrap_servers, caplog, key):
    connection = connect(bootstrap_servers)
    connection.send_frame(struct.pack(">hhih", key, 0, 7, -1))
    assert connection.is_closed_within(5)
    (line,) = (record.message for record in caplog.records if "is not spoken here" in record.message)
    assert f"API {key} " in line and UNSPOKEN.get(key, "") in line and "docs/embedded-broker.md" in line
