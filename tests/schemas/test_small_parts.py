"""Ids, clocks, tokens, partitioner, blobs, reasons, settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from agl_stream import errors
from agl_stream.errors import BlobCorrupt, SettingError
from agl_stream.schemas import clock, events, ids, reasons, tokens, topics
from agl_stream.schemas.blobs import BlobStore
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.settings import Settings


@given(st.binary(max_size=80), st.integers(1, 64))
def test_partitioner_is_kafkas(key: bytes, partitions: int) -> None:
    assert murmur2_partition(key, partitions) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50))
def test_token_ids_round_trip(values: list[int]) -> None:
    packed = tokens.pack_ids(values)
    assert packed == b"".join(v.to_bytes(4, "little", signed=True) for v in values)
    assert tokens.unpack_ids(packed) == values


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_logprobs_round_trip(values: list[float]) -> None:
    assert tokens.unpack_floats(tokens.pack_floats(values)) == values


def test_ids_that_must_repeat_do_and_parts_do_not_run_together() -> None:
    assert ids.attempt_id("ro-1", 2) == ids.attempt_id("ro-1", 2) != ids.attempt_id("ro-1", 3)
    assert ids.event_id("a", "bc") != ids.event_id("ab", "c")
    assert len({ids.new_rollout_id() for _ in range(1000)}) == 1000


def test_hybrid_clock_rises_and_puts_cause_before_effect() -> None:
    here, there = clock.HybridClock(), clock.HybridClock()
    cause = 0
    for _ in range(70_000):  # more ticks than one millisecond's counter holds
        cause = here.tick()
    there.witness(cause)
    assert there.tick() > cause


def test_hybrid_clock_ignores_a_sick_clock() -> None:
    healthy = clock.HybridClock()
    healthy.witness(2**62)
    assert clock.wall_ms(healthy.tick()) < clock.now_us() // 1000 + 60_000


def test_blob_round_trip_and_corruption(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path))
    ref = store.put(b"payload")
    assert store.put(b"payload") == ref
    assert store.get(ref) == b"payload"
    (tmp_path / ref["uri"]).write_bytes(b"paYload")
    with pytest.raises(BlobCorrupt, match="does not match"):
        store.get(ref)
    with pytest.raises(BlobCorrupt, match="missing"):
        store.get({"uri": "00/none", "sha256": "0", "length": 1})
    with pytest.raises(BlobCorrupt, match="refused"):
        store.get({"uri": "../../etc/passwd", "sha256": "0", "length": 1})


def test_every_event_has_one_topic() -> None:
    assert sorted(topics.EVENT_TOPIC) == sorted(events.EVENT_TYPES)


def test_every_decode_error_is_in_the_catalogue_of_reasons() -> None:
    for error in (errors.DecodeError, *errors.DecodeError.__subclasses__()):
        assert error.reason_code in reasons.REASONS


def test_settings_take_argument_before_environment_before_folder_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("BOOTSTRAP_SERVERS", "REGISTRY_URL", "GATEWAY_URL", "DIR", "NAMESPACE"):
        monkeypatch.delenv(f"AGL_STREAM_{name}", raising=False)
    folder = tmp_path / ".agl-stream"
    folder.mkdir()
    (folder / "endpoints.json").write_text(
        json.dumps({"bootstrap_servers": "file:1", "registry_url": "http://file:2", "namespace": "ignored"})
    )
    below = tmp_path / "project" / "src"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("AGL_STREAM_REGISTRY_URL", "http://env:2")
    settings, sources = Settings.load_with_sources(namespace="mine")
    assert settings.dir == str(folder)
    assert (settings.bootstrap_servers, sources["bootstrap_servers"]) == ("file:1", "folder")
    assert (settings.registry_url, sources["registry_url"]) == ("http://env:2", "environment")
    assert (settings.namespace, sources["namespace"]) == ("mine", "argument")
    assert sources["partitions"] == "default"


def test_a_setting_that_does_not_parse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STREAM_PARTITIONS", "many")
    with pytest.raises(SettingError, match="AGL_STREAM_PARTITIONS='many'"):
        Settings.load()
    monkeypatch.delenv("AGL_STREAM_PARTITIONS")
    with pytest.raises(SettingError, match="unknown setting 'partition'"):
        Settings.load(partition=3)
