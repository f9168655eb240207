"""Settings from the environment: what nothing could work with is refused by name, in every process alike."""

from __future__ import annotations

import pytest

from agl_stream.cli.main import run
from agl_stream.errors import SettingError
from agl_stream.settings import Settings


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("runner_slots", "0", "must be above 0"),
        ("runner_slots", "-3", "must be above 0"),
        ("runner_slots", "many", "is not a int"),
        ("heartbeat_seconds", "0", "must be above 0"),
        ("heartbeat_seconds", "nan", "must be above 0"),
        ("claim_lease_seconds", "inf", "must be above 0"),
        ("drain_seconds", "-1", "must be 0 or more"),
        ("partitions", "0", "must be above 0"),
        ("namespace", "a b", "must be text of the form"),
        ("compression", "rar", "must be none, gzip, snappy, lz4, zstd"),
        ("lifecycle_store", "disk", "must be memory, rocksdb"),
        ("gateway_allow_unrecorded", "enabled", "is not one of 1, true, yes, on, 0, false, no, off"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AGL_STREAM_{name.upper()}", value)
    with pytest.raises(SettingError, match=f"AGL_STREAM_{name.upper()}=.*{said}"):
        Settings.load()


@pytest.mark.parametrize(("text", "meant"), [("1", True), ("Yes", True), ("off", False), ("0", False)])
def test_switches(text: str, meant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STREAM_GATEWAY_ALLOW_UNRECORDED", text)
    assert Settings.load().gateway_allow_unrecorded is meant


def test_zero_means_never_or_at_once_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("worker_lost_seconds", "drain_seconds", "linger_ms"):
        monkeypatch.setenv(f"AGL_STREAM_{name.upper()}", "0")
        assert getattr(Settings.load(), name) == 0


def test_an_option_has_an_environment_name_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGL_STREAM_BENCH_SPANS_SPANS", "a few")
    assert run(["bench", "spans"]) == 2
    assert "'a few'" in capsys.readouterr().err
