"""doctor's checks and report; the small functions that format answers."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.cli.output import emit_json, human_bytes, human_seconds, shorten, table
from agl_stream.cli.render import as_json, one_line
from agl_stream.cli.tail import start_offsets
from agl_stream.errors import UsageError
from agl_stream.schemas import events
from agl_stream.settings import Settings
from tests.cli.conftest import Agl, parsed


def test_doctor_finds_the_engines_and_names_every_setting(agl: Agl, with_topics: Settings) -> None:
    result = agl("doctor", "--output", "json")
    (found,) = parsed(result)
    assert result.exit_code == 3, "no gateway runs here"
    assert [name for name, check in found["checks"].items() if not check["ok"]] == ["gateway"]
    assert "11 topics" in found["checks"]["broker"]["detail"]
    settings = {s["name"]: s for s in found["settings"]}
    assert settings["partitions"]["source"] == "environment"
    assert settings["linger_ms"]["source"] == "default"
    assert settings["gateway_token"]["value"] == ""
    assert found["versions"]["python"]


def test_doctor_never_prints_a_secret(agl: Agl) -> None:
    assert "s3cret" not in agl("doctor", AGL_STREAM_GATEWAY_TOKEN="s3cret").output
    assert "(set)" in agl("doctor", AGL_STREAM_GATEWAY_TOKEN="s3cret").output


def test_doctor_as_a_probe_of_one_process(agl: Agl, with_topics: Settings) -> None:
    """What containers ask: only what this process needs, and whether somebody is in its group."""
    from confluent_kafka import Consumer

    empty = agl("doctor", "--only", "broker,registry", "--group", "joiner", "--output", "json")
    (found,) = parsed(empty)
    assert empty.exit_code == 1
    assert {name: check["ok"] for name, check in found["checks"].items()} == {
        "broker": True,
        "registry": True,
        "group joiner": False,
    }
    member = Consumer({"bootstrap.servers": with_topics.bootstrap_servers, "group.id": with_topics.group("joiner")})
    member.subscribe([with_topics.topic("spans")])
    deadline = time.monotonic() + 30
    while not member.assignment() and time.monotonic() < deadline:
        member.poll(0.1)
    full = agl("doctor", "--only", "registry", "--group", "joiner")
    member.close()
    assert full.exit_code == 0, full.output
    assert "1 member(s)" in full.output


def test_doctor_names_a_check_that_it_does_not_know(agl: Agl) -> None:
    result = agl("doctor", "--only", "brokr")
    assert isinstance(result.exception, UsageError)
    assert "brokr is no check; choose from broker, registry" in str(result.exception)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_doctor_tells_of_a_folder_that_cannot_be_written(agl: Agl, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    assert "cannot be written" in agl("doctor").stdout


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [math.nan, 1.0, {"b": math.inf}], 3: "ü"})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.0, {"b": None}], "3": "ü"}


def test_tables_align_numbers_to_the_right() -> None:
    assert table(["name", "n"], [["a", 1], ["bb", 1000], ["c", None]]).splitlines() == [
        "  name      n",
        "  a         1",
        "  bb    1,000",
        "  c         -",
    ]
    assert table(["name"], []) == "  (none)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00042, "420 µs"),
        (0.0042, "4.2 ms"),
        (4.2, "4.2 s"),
        (75, "1 min 15 s"),
        (59.99, "60.0 s"),
        (3700, "1 h 1 min"),
    ],
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_human_bytes_and_shorten() -> None:
    assert [human_bytes(n) for n in (0, 1536, 5 * 2**30)] == ["0 B", "1.5 KiB", "5.0 GiB"]
    assert shorten("a  b\nc", 10) == "a b c"
    assert shorten("abcdefgh", 4) == "abc…"


@given(st.dictionaries(st.sampled_from(["prompt_token_ids", "response_logprobs", "key"]), st.binary(max_size=9)))
def test_any_bytes_have_a_json_form(event: dict[str, bytes]) -> None:
    json.dumps(as_json(event))


@given(st.sampled_from(sorted(events.EVENT_TYPES)), st.binary(max_size=7), st.text(max_size=20))
def test_any_event_has_a_line(event_type: str, some_bytes: bytes, some_text: str) -> None:
    """Events with odd contents in every field they may have, as `tail` meets them."""

    def value(schema: object) -> object:
        if isinstance(schema, list):
            return value(schema[-1])
        if isinstance(schema, dict):
            if schema["type"] == "record":
                return {f["name"]: value(f["type"]) for f in schema["fields"]}
            if schema["type"] == "array":
                return [value(schema["items"])]
            if schema["type"] == "enum":
                return schema["symbols"][0]
            return value(schema["type"])
        plain = {"string": some_text, "bytes": some_bytes, "int": 3, "long": 4, "double": 0.5, "boolean": True}
        return plain.get(str(schema), {})

    event = value(events.current(event_type))
    assert isinstance(event, dict)
    assert "\n" not in one_line(event_type, event)
    assert len(one_line(event_type, event)) <= 150


@given(
    st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), max_size=5),
    st.one_of(st.sampled_from(["beginning", "end"]), st.integers(-100, 100).map(str)),
)
def test_start_offsets_stay_within_the_log(bounds: dict[int, list[int]], where: str) -> None:
    limits = {p: (low, high) for p, (low, high) in bounds.items()}
    start = start_offsets(where, limits, None)
    assert start.keys() == limits.keys()
    assert all(limits[p][0] <= offset <= limits[p][1] for p, offset in start.items())
    if where == "-3":
        assert all(limits[p][1] - offset <= 3 for p, offset in start.items())


def test_links_in_the_clear_to_other_machines_are_named() -> None:
    from agl_stream.cli.doctor import check_links

    here = Settings(store_url="cassandra://127.0.0.2:9042,localhost:9042/agl")
    assert check_links(here) == "none leaves this machine in the clear"
    away = Settings(
        bootstrap_servers="127.0.0.1:9092,kafka.example:9092",
        registry_url="http://registry.example:8081",
        store_url="cassandra://one.example:9042/agl",
    )
    told = check_links(away)
    for part in ("Kafka", "AGL_STREAM_KAFKA_SECURITY_PROTOCOL", "registry", "state store", "AGL_STREAM_STORE_TLS"):
        assert part in told
    protected = dataclasses.replace(
        away,
        kafka_security_protocol="SASL_SSL",
        kafka_username="u",
        kafka_password="p",
        registry_url="https://registry.example",
        store_tls=True,
    )
    assert check_links(protected) == "none leaves this machine in the clear"
