"""The folder of a local system: one holder, endpoints that appear whole and go with the system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agl_stream.errors import FolderNotWritable
from agl_stream.local.data_folder import DataFolder, Endpoints
from agl_stream.local.workplace import workplace
from agl_stream.settings import Settings

HOLD = (
    "import pathlib, sys, time\n"
    "from agl_stream.local.data_folder import DataFolder\n"
    "with DataFolder(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(600)\n"
)


def endpoints(folder: Path) -> Endpoints:
    return Endpoints("127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", str(folder))


def test_endpoints_are_found_while_the_folder_is_held_and_not_afterwards(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "data") as folder:
        assert Settings.load(dir=str(folder.path)).registry_url == "http://127.0.0.1:8081"
        running = Settings.load(namespace="team", upstream_url="http://127.0.0.1:4/v1", partitions=3)
        folder.publish(endpoints(folder.path), running)
        found, sources = Settings.load_with_sources(dir=str(folder.path))
        assert (found.bootstrap_servers, found.registry_url) == ("127.0.0.1:1", "http://127.0.0.1:2")
        assert (found.gateway_url, sources["gateway_url"]) == ("http://127.0.0.1:3", "folder")
        assert (found.namespace, found.upstream_url, found.partitions) == ("team", "http://127.0.0.1:4/v1", 3)
        assert json.loads((folder.path / "endpoints.json").read_text())["pid"] == os.getpid()
    assert Settings.load(dir=str(tmp_path / "data")).registry_url == "http://127.0.0.1:8081"


def test_a_second_system_in_the_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(FolderNotWritable, match=rf"in use by a running system \(process {holder.pid}\).*--dir"):
        DataFolder(tmp_path).__enter__()
    holder.kill()
    holder.wait()
    with DataFolder(tmp_path):
        pass  # A killed holder leaves no lock behind.


def test_endpoints_of_a_killed_system_are_gone_when_the_next_one_starts(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps({"bootstrap_servers": "127.0.0.1:1"}))
    with DataFolder(tmp_path):
        assert not (tmp_path / "endpoints.json").exists()


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderNotWritable, match=r"cannot be used .*AGL_STREAM_DIR"):
        DataFolder(tmp_path / "file" / "data").__enter__()


def test_a_temporary_workplace_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with workplace(None) as temporary:
        (temporary / "x").write_text("")
    assert not temporary.exists()
    with workplace(tmp_path / "kept") as kept:
        kept.mkdir()
    assert kept.exists()
