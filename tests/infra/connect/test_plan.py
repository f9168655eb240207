"""What is decided about connectors, and what is told of them, without a worker."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from agl_stream.cli.connect import place_values, wanted_configs
from agl_stream.cli.main import cli, run
from agl_stream.errors import UsageError
from agl_stream.infra.connect.plan import Change, health, plan
from agl_stream.infra.connect.sinks import names, render, template
from agl_stream.settings import Settings

VALUES = place_values(Settings(namespace="ns", connect_jdbc_url="jdbc:x", registry_url="http://r", dir="/d"))


def test_an_applied_plan_plans_nothing_more() -> None:
    wanted = {"a": {"x": "1", "y": "2"}, "b": {"x": "1"}, "c": {"x": "1"}}
    existing = {
        "b": {"x": "1", "name": "b"},
        "c": {"x": "2", "z": "3", "name": "c"},
        "stranger": {"x": "1"},
    }
    assert plan(wanted, existing) == [
        Change("create", "a"),
        Change("keep", "b"),
        Change("update", "c", ["x", "z"]),
    ]
    assert {change.action for change in plan(wanted, wanted)} == {"keep"}


@pytest.mark.parametrize("sink", names())
def test_every_sink_waits_sets_aside_and_has_no_secret(sink: str) -> None:
    config = render(sink, VALUES)
    assert "{{" not in json.dumps(config)
    assert config["errors.tolerance"] == "all"
    assert config["errors.deadletterqueue.topic.name"] == f"ns.dead-letters.{sink}"
    assert config["errors.deadletterqueue.context.headers.enable"] == "true"
    assert config["errors.retry.timeout"] == "-1"  # What waits for a registry must never become a dead letter.
    assert config["value.converter"] == "io.aglstream.connect.AvroConverter"
    assert config["value.converter.schema.registry.url"] == "http://r"
    assert all(value.startswith("${env:SINK_") for key, value in config.items() if "password" in key)


def test_an_unknown_sink_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="rollouts-postgres"):
        template("../sinks/rollouts-postgres")
    with pytest.raises(UsageError, match="no sink 'x'"):
        wanted_configs(("x",), Settings())


def test_health_tells_the_cause_of_the_first_failure() -> None:
    trace = "org.X: Exiting WorkerSinkTask\n\tat a.b\nCaused by: org.Y: middle\n\tat c.d\nCaused by: org.Z: the disk\n"
    status = {
        "connector": {"state": "RUNNING"},
        "tasks": [{"id": 0, "state": "RUNNING"}, {"id": 1, "state": "FAILED", "trace": trace}],
    }
    found = health("c", status)
    assert (found.failed, found.error) == (True, "org.Z: the disk")
    assert not health("c", {"connector": {"state": "UNASSIGNED"}, "tasks": []}).failed


@pytest.mark.parametrize("arguments", [["list"], ["status"], ["restart"], ["apply", "rollouts-postgres"]])
def test_without_a_worker_the_setting_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGL_STREAM_CONNECT_URL", "http://127.0.0.1:1")
    assert run(["connect", *arguments]) == 3
    assert "AGL_STREAM_CONNECT_URL" in capsys.readouterr().err
    monkeypatch.setenv("AGL_STREAM_CONNECT_URL", "nonsense")
    assert run(["connect", *arguments]) == 3


def test_apply_wants_names_or_all() -> None:
    assert CliRunner().invoke(cli, ["connect", "apply"]).exception is not None
    assert run(["connect", "apply"]) == 2
    assert run(["connect", "apply", "--all", "rollouts-postgres"]) == 2
