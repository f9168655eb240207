"""The layout of a keyspace: made, compared, changed by retention, refused; and the verb."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agl_stream.errors import AglStreamError, EngineUnreachable, SettingError
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
from agl_stream.streams.store.cassandra import durability
from agl_stream.streams.store.cassandra.migration import migrations
from agl_stream.streams.store.layout import apply_store, plan_store
from agl_stream.supervise import free_ports

from ..makers import place, rollout
from .cassandra_keyspace import cql, fresh_keyspace

engines = pytest.mark.engines


@pytest.fixture
def fresh(cassandra: Cassandra) -> Iterator[Settings]:
    """A keyspace that is not there yet."""
    with fresh_keyspace(cassandra.contact_points) as settings:
        yield settings


@pytest.fixture(scope="module")
def made(cassandra: Cassandra) -> Iterator[Settings]:
    """A keyspace with this version's layout; a test that spoils it mends it."""
    with fresh_keyspace(cassandra.contact_points) as settings:
        apply_store(settings)
        yield settings


def actions(settings: Settings) -> set[str]:
    return {change.action for change in plan_store(settings)}


@engines
def test_a_keyspace_is_planned_made_and_then_complete(fresh: Settings) -> None:
    planned = plan_store(fresh)
    assert [change.action for change in planned] == ["create"] + ["migrate"] * len(migrations())
    with pytest.raises(SettingError, match="`agl-stream store apply`"):
        open_store(fresh)
    # planning has changed nothing
    assert apply_store(fresh) == planned
    assert actions(fresh) == {"keep"}
    assert {change.action for change in apply_store(fresh)} == {"keep"}
    store = open_store(fresh, read_only=False)
    store.apply([place("RolloutStateChanged", rollout("ro-1"))])
    apply_store(fresh)
    assert store.get_rollout("ro-1") == rollout("ro-1")
    store.close()


@engines
def test_two_that_apply_at_once_end_with_one_layout(fresh: Settings) -> None:
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(apply_store, fresh) for _ in range(3)]:
            done.result(120)
    assert actions(fresh) == {"keep"}
    store = open_store(fresh, read_only=False)
    store.apply([place("RolloutStateChanged", rollout("ro-1"))])
    assert store.counts()["rollouts"] == 1
    store.close()
    with cql(fresh) as session:
        assert session.execute("SELECT owner FROM layout_lock").one() is None


@engines
def test_what_one_that_died_left_undone_is_done_by_the_next(made: Settings) -> None:
    with cql(made) as session:
        session.execute("DELETE FROM layout WHERE part = 0 AND number = 1 IF EXISTS")
        with pytest.raises(SettingError, match=r"lacks 0001_initial; run `agl-stream store apply`"):
            open_store(made)
        # its lock goes by itself
        session.execute("INSERT INTO layout_lock (name, owner) VALUES ('layout', 'dead') IF NOT EXISTS USING TTL 2")
        apply_store(made)
    open_store(made).close()


@engines
def test_a_keyspace_of_a_later_release_is_refused(made: Settings) -> None:
    with cql(made) as session:
        session.execute("INSERT INTO layout (part, number, name, hash) VALUES (0, 99, '0099_later', 'x')")
        try:
            with pytest.raises(SettingError, match=r"0099_later.*later version of agl-stream"):
                open_store(made)
            with pytest.raises(AglStreamError, match="0099_later"):
                apply_store(made)
            assert "refuse" in actions(made)
        finally:
            session.execute("DELETE FROM layout WHERE part = 0 AND number = 99")


@engines
def test_a_migration_that_was_applied_from_another_text_is_refused(made: Settings) -> None:
    right = migrations()[0].hash
    with cql(made) as session:
        session.execute("UPDATE layout SET hash = 'other' WHERE part = 0 AND number = 1")
        try:
            with pytest.raises(SettingError, match=r"0001_initial.*another text"):
                open_store(made)
        finally:
            session.execute("UPDATE layout SET hash = %s WHERE part = 0 AND number = 1", (right,))
    open_store(made).close()


@engines
def test_a_keyspace_belongs_to_one_namespace(made: Settings) -> None:
    other = replace(made, namespace="other")
    with pytest.raises(SettingError, match="belongs to namespace 'agl', not 'other'"):
        open_store(other)
    with pytest.raises(AglStreamError, match="belongs to namespace 'agl'"):
        apply_store(other)


@engines
def test_the_retention_of_spans_follows_its_setting(made: Settings) -> None:
    month = replace(made, store_span_days=30)
    assert [change.thing for change in plan_store(month) if change.action == "configure"] == [
        "spans", "span_buckets", "activity",
    ]  # fmt: skip
    apply_store(month)
    assert actions(month) == {"keep"}
    found = (
        "SELECT default_time_to_live, compaction FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    )
    with cql(month) as session:
        seconds, compaction = session.execute(found, (month.store_url.rpartition("/")[2], "spans")).one()
        assert seconds == 30 * 86_400
        assert compaction["class"].endswith("TimeWindowCompactionStrategy")
        assert (compaction["compaction_window_size"], compaction["compaction_window_unit"]) == ("1", "DAYS")
    apply_store(made)
    assert actions(made) == {"keep"}


@engines
def test_more_copies_than_nodes_are_refused_before_anything_is_made(cassandra: Cassandra) -> None:
    with fresh_keyspace(cassandra.contact_points, replication_factor=3) as settings:
        with pytest.raises(AglStreamError, match=r"3 copies are wanted in data centre datacenter1, which has 1"):
            apply_store(settings)
        elsewhere = replace(settings, store_url=settings.store_url + "?replication=dc9:1")
        with pytest.raises(AglStreamError, match="dc9, which has 0"):
            apply_store(elsewhere)
        assert plan_store(settings)[0].action == "refuse"
        one = replace(settings, store_url=settings.store_url + "?replication=1")
        apply_store(one)
        with cql(one) as session:
            found = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
            replication = session.execute(found, (settings.store_url.rpartition("/")[2],)).one()[0]
        assert replication["class"].endswith("NetworkTopologyStrategy") and replication["datacenter1"] == "1"


@engines
def test_the_verb_says_what_there_is_to_do(fresh: Settings) -> None:
    from agl_stream.cli.store import command

    variables = {"AGL_STREAM_STORE_URL": fresh.store_url}
    first = CliRunner().invoke(command, ["plan"], env=variables)
    assert (first.exit_code, "+ create" in first.output, "+ migrate   0001_initial" in first.output) == (1, True, True)
    assert CliRunner().invoke(command, ["apply"], env=variables).exit_code == 0
    again = CliRunner().invoke(command, ["plan", "--output", "json"], env=variables)
    assert again.exit_code == 0
    assert {change["action"] for change in json.loads(again.output)["changes"]} == {"keep"}


@engines
def test_a_node_that_acknowledges_early_is_told_of(
    made: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(made, read_only=False).close()
    assert "commitlog_sync" not in caplog.text
    # what this node says is not the word that is warned of; so the word is changed
    monkeypatch.setattr(durability, "_PERIODIC", "batch")
    open_store(made, read_only=True).close()
    assert "commitlog_sync" not in caplog.text
    open_store(made, read_only=False).close()
    assert "set commitlog_sync: group or batch" in caplog.text


def test_no_node_at_all_is_told_with_the_setting() -> None:
    settings = Settings(store_url=f"cassandra://127.0.0.1:{free_ports(1)[0]}/agl")
    for call in (plan_store, apply_store, open_store):
        with pytest.raises(EngineUnreachable, match="AGL_STREAM_STORE_URL"):
            call(settings)


def test_the_embedded_store_sees_to_its_layout_itself(tmp_path: Path) -> None:
    settings = Settings(dir=str(tmp_path))
    assert [change.action for change in plan_store(settings)] == ["create"]
    assert not (tmp_path / "state.db").exists()
    assert [change.action for change in apply_store(settings)] == ["create"]
    assert [change.action for change in plan_store(settings)] == ["keep"]
    (tmp_path / "state.db").write_bytes(b"no database at all" * 100)
    assert [change.action for change in plan_store(settings)] == ["refuse"]
