"""What is particular to SQLite: files, processes, durability settings, migrations."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agl_stream.errors import EngineUnreachable, FolderNotWritable, SettingError
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
from agl_stream.streams.store.sqlite import SqliteStore

from ..makers import Placed, place, rollout, span

WRITE_FOR_EVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from makers import Placed, span
from agl_stream.streams.store.sqlite import SqliteStore
store, n = SqliteStore(Path(sys.argv[2])), 0
while True:
    store.apply([Placed("spans", 0, n + k, span(f"ro-{n}", f"s{k}", attributes="x" * 900)) for k in range(50)])
    n += 50
"""


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


def test_other_processes_read_while_one_writes_and_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    reader = SqliteStore(path, read_only=True)
    assert reader.applied_offset("spans", 0) is None
    helpers = str(Path(__file__).parent.parent)
    writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, helpers, str(path)])
    try:
        wait_until(lambda: (reader.applied_offset("spans", 0) or 0) >= 500)
        for _ in range(50):
            # data and offset are of one transaction: never one without the other
            applied = reader.applied_offset("spans", 0) or 0
            assert reader.counts()["spans"] >= applied
    finally:
        writer.kill()
        writer.wait()
    after = SqliteStore(path)
    assert after.counts()["spans"] == after.applied_offset("spans", 0)
    after.apply([Placed("spans", 0, 10**6, span("ro-new", "s"))])
    assert reader.applied_offset("spans", 0) == 10**6 + 1
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    after.close()
    reader.close()


def test_a_store_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    reader = open_store(Settings(dir=str(tmp_path / "nowhere")), read_only=True)
    assert reader.get_rollout("ro-1") is None
    assert reader.counts()["spans"] == 0
    assert reader.account()["balanced"] is True
    assert not (tmp_path / "nowhere").exists()


def test_a_reader_follows_a_store_that_is_rebuilt(tmp_path: Path) -> None:
    settings = Settings(dir=str(tmp_path))
    first = open_store(settings, read_only=False)
    reader = open_store(settings, read_only=True)
    first.apply([place("RolloutStateChanged", rollout("ro-1"))])
    assert reader.get_rollout("ro-1") is not None
    first.close()
    for part in tmp_path.iterdir():
        part.unlink()
    assert reader.get_rollout("ro-1") is None
    second = open_store(settings, read_only=False)
    second.apply([place("RolloutStateChanged", rollout("ro-2"))])
    assert (reader.get_rollout("ro-1"), reader.get_rollout("ro-2") is not None) == (None, True)


def test_many_threads_read_one_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(100):
                store.get_spans("ro-1")
                store.counts()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for n in range(100):
        store.apply([Placed("spans", 0, n, span("ro-1", f"s{n}"))])
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.get_spans("ro-1")) == 100


def test_reading_only_means_it(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "state.db").close()
    with pytest.raises(SettingError, match="reading only"):
        SqliteStore(tmp_path / "state.db", read_only=True).apply([place("RolloutStateChanged", rollout("ro-1"))])


def test_another_namespace_and_a_newer_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    SqliteStore(path, namespace="one").close()
    for read_only in (False, True):
        with pytest.raises(SettingError, match="belongs to namespace 'one'"):
            SqliteStore(path, namespace="two", read_only=read_only).counts()
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingError, match="layout 99"):
        SqliteStore(path, namespace="one")


def test_what_is_no_database_is_told_apart_from_trouble(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is not a database at all, only some text that is long enough" * 20)
    with pytest.raises(SettingError, match=r"damaged or no state store.*rebuilt from the log"):
        SqliteStore(path)


def test_a_full_disk_is_trouble_that_may_pass(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    with store._connections.transaction() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    big = [Placed("spans", 0, n, span("ro-1", f"s{n}", attributes="x" * 4000)) for n in range(100)]
    with pytest.raises(EngineUnreachable, match="full"):
        store.apply(big)
    assert store.applied_offsets() == {}
    with store._connections.transaction() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    store.apply(big)
    assert store.applied_offset("spans", 0) == 100


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderNotWritable, match="AGL_STREAM_DIR"):
        SqliteStore(tmp_path / "file" / "state.db")


def test_an_unknown_address_is_named() -> None:
    with pytest.raises(SettingError, match="AGL_STREAM_STORE_URL"):
        open_store(Settings(store_url="oracle://x"))


def test_spans_take_little_more_than_their_bytes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    records = [Placed("spans", 0, n, span(f"ro-{n:016x}", f"{n:016x}", attributes="a" * 700)) for n in range(4000)]
    for start in range(0, 4000, 500):
        store.apply(records[start : start + 500])
    payload = sum(sum(len(v) for v in r.event.values() if isinstance(v, str)) for r in records)
    store.close()
    assert (tmp_path / "state.db").stat().st_size < 1.6 * payload
