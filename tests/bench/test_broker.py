"""The broker's benchmark measures real records through real brokers, and says what it compared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agl_stream.bench.broker import EMBEDDED, KAFKA

_SMALL = ["--messages", "2000", "--size", "100", "--rounds", "1", "--output", "json"]


def _bench(*options: str) -> dict:
    command = [sys.executable, "-m", "agl_stream.cli.main", "bench", "broker", *_SMALL, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=150).stdout)


def _check(arm: dict) -> None:
    median = arm["median"]
    for verb in ("produce", "consume"):
        assert 1_000 < median[f"{verb}_per_second"] < 10_000_000
        assert median[f"{verb}_mb_per_second"] == pytest.approx(median[f"{verb}_per_second"] / 10_000, rel=0.1, abs=0.1)
        assert arm["rounds"][f"{verb}_mb_per_second"] == [median[f"{verb}_mb_per_second"]]


def test_the_embedded_broker_alone():
    result = _bench("--size", "1000")
    assert [by_size["bytes"] for by_size in result["sizes"]] == [100, 1000]
    for by_size in result["sizes"]:
        assert set(by_size["arms"]) == {EMBEDDED}
        assert "embedded_over_kafka" not in by_size
    _check(result["sizes"][0]["arms"][EMBEDDED])
    assert 0 < result["latency_ms"][EMBEDDED]["p50"] <= result["latency_ms"][EMBEDDED]["p99"]
    assert result["machine"]["cores"] >= 1


@pytest.mark.engines
def test_side_by_side_with_apache_kafka():
    result = _bench("--against", "kafka")
    (by_size,) = result["sizes"]
    assert set(by_size["arms"]) == set(result["latency_ms"]) == {EMBEDDED, KAFKA}
    for verb, ratio in by_size["embedded_over_kafka"].items():
        arms = by_size["arms"]
        expected = arms[EMBEDDED]["median"][f"{verb}_per_second"] / arms[KAFKA]["median"][f"{verb}_per_second"]
        assert ratio == pytest.approx(expected, abs=0.02)
