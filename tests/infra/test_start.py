"""Starting the engines, and every way in which that must fail clearly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from agl_stream.errors import FolderNotWritable, PortInUse, SettingError
from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile, Journal
from agl_stream.infra.embedded.registry.service import EmbeddedRegistry
from agl_stream.infra.embedded.server.broker import EmbeddedBroker
from agl_stream.infra.embedded.storage import FolderInUse

ENGINES = pytest.mark.parametrize("engine", [EmbeddedBroker, EmbeddedRegistry])


@ENGINES
async def test_a_port_in_use_is_named_and_the_folder_is_free_again(engine, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port}.*--port"):
            await engine(tmp_path, port=port).start()
    async with engine(tmp_path):
        pass


@ENGINES
async def test_a_folder_belongs_to_one_engine_at_a_time(engine, tmp_path):
    async with engine(tmp_path):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}.*--dir"):
            await engine(tmp_path).start()
    async with engine(tmp_path):
        pass


@ENGINES
async def test_a_folder_that_cannot_be_made_is_named(engine, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderNotWritable, match=r"file/data.*--dir"):
        await engine(tmp_path / "file" / "data").start()


@ENGINES
def test_only_loopback_is_served(engine, tmp_path):
    with pytest.raises(SettingError, match=r"0\.0\.0\.0.*authentication"):
        engine(tmp_path, host="0.0.0.0")


def test_impossible_settings_are_named():
    with pytest.raises(SettingError, match="max_connections"):
        BrokerConfig(max_connections=0)
    with pytest.raises(SettingError, match="flush_policy"):
        BrokerConfig(flush_policy="sometimes")  # type: ignore[arg-type]


async def test_a_damaged_catalogue_is_not_guessed_at(tmp_path):
    async with EmbeddedBroker(tmp_path) as broker:
        broker.node.catalogue.create("kept", 1, {})
    catalogue = tmp_path / "catalogue.json"
    saved = catalogue.read_text()
    catalogue.write_text(saved[:-5])
    with pytest.raises(DamagedFile, match=r"catalogue\.json"):
        await EmbeddedBroker(tmp_path).start()
    catalogue.unlink()
    with pytest.raises(DamagedFile, match="holds data"):
        await EmbeddedBroker(tmp_path).start()
    catalogue.write_text(saved.replace('"format": 2', '"format": 99'))
    with pytest.raises(DamagedFile, match="format 99"):
        await EmbeddedBroker(tmp_path).start()
    catalogue.write_text(saved.replace('"partitions": 1', '"partitions": 2'))
    with pytest.raises(DamagedFile, match="checksum"):
        await EmbeddedBroker(tmp_path).start()
    catalogue.write_text(saved)
    async with EmbeddedBroker(tmp_path) as broker:
        assert broker.node.catalogue.names() == ["kept"]


@pytest.mark.parametrize(
    ("verb", "address", "keys"),
    [
        ("broker", "bootstrap_servers", {"bootstrap_servers", "data_dir"}),
        ("registry", "registry_url", {"registry_url", "data_dir"}),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_verbs_announce_themselves_and_end_gracefully(verb, address, keys, number, tmp_path):
    command = [sys.executable, "-m", "agl_stream.cli.main", verb, "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--output", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = json.loads(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    assert set(line) == keys
    assert line["data_dir"] == str(tmp_path / verb)
    assert "127.0.0.1:" in line[address]


def test_the_ready_line_for_people(tmp_path):
    command = [sys.executable, "-m", "agl_stream.cli.main", "broker", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert line.startswith("broker ready on 127.0.0.1:") and line.rstrip().endswith(f"data in {tmp_path}/broker")


def test_a_journal_keeps_what_was_appended_and_can_be_rewritten(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.append([["a", 1], ["b", 2]])
    journal.append([["c", 3]])
    assert Journal(tmp_path / "j").load() == [["a", 1], ["b", 2], ["c", 3]]
    journal.rewrite([["c", 3]])
    journal.append([["d", 4]])
    assert Journal(tmp_path / "j").load() == [["c", 3], ["d", 4]]


def test_a_failed_replacement_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "file"
    disk.write_whole(path, b"old")

    def refuse(fd):
        raise OSError("no space")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="no space"):
            disk.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
