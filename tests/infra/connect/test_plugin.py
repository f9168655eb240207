"""The plugin's own tests, run by Maven, and what a worker sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agl_stream.errors import NotFound
from agl_stream.infra.connect.client import ConnectRefused
from agl_stream.infra.connect.plugin_build import run_maven
from agl_stream.infra.connect.sinks import names, template
from agl_stream.infra.servers.tools import maven

from .conftest import Scene

pytestmark = pytest.mark.engines


def test_the_plugins_tests_pass(tmp_path: Path) -> None:
    run_maven(maven(), tmp_path, "test")
    reports = list((tmp_path / "surefire-reports").glob("TEST-*.xml"))
    assert len(reports) == 2
    assert all('failures="0"' in report.read_text() and 'tests="0"' not in report.read_text() for report in reports)


def test_a_worker_can_run_every_ready_sink(scene: Scene) -> None:
    assert {template(sink)["connector.class"] for sink in names()} <= scene.connect.plugins()


def test_list_apply_and_remove_say_what_they_do(scene: Scene) -> None:
    dry = scene.agl("connect", "apply", "rollouts-postgres", "spans-jsonl", "--dry-run")
    name, spans = f"{scene.namespace}-rollouts-postgres", f"{scene.namespace}-spans-jsonl"
    assert dry.output == f"+ create  {name}\n+ create  {spans}\n"
    assert scene.connect.configs().keys() & {name, spans} == set()
    assert scene.agl("connect", "apply", "rollouts-postgres", "spans-jsonl").output == dry.output
    again = scene.agl("connect", "apply", "rollouts-postgres", "spans-jsonl")
    assert again.output == f"  keep    {name}\n  keep    {spans}\n"
    scene.env["AGL_STREAM_CONNECT_JDBC_USERNAME"] = "somebody"
    changed = scene.agl("connect", "apply", "rollouts-postgres")
    assert changed.output == f"~ update  {name} (connection.username)\n"
    listed = {line.split()[0]: line.split()[-1] for line in scene.agl("connect", "list").output.splitlines()[1:]}
    assert {sink for sink, applied in listed.items() if applied == "yes"} == {"rollouts-postgres", "spans-jsonl"}
    assert listed.keys() == set(names())
    assert scene.agl("connect", "remove", "rollouts-postgres", "triplets-jsonl").output == f"removed {name}\n"
    assert scene.connect.configs().keys() & {name, spans} == {spans}


def test_what_connect_refuses_is_told_in_its_words(scene: Scene) -> None:
    with pytest.raises(ConnectRefused, match="Nowhere"):
        scene.connect.put(f"{scene.namespace}-x", {"connector.class": "Nowhere", "topics": "t"})
    with pytest.raises(NotFound, match="no-such"):
        scene.connect.delete("no-such")
