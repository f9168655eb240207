"""Configuration files of the servers, and what callers put into them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agl_stream.errors import PortInUse, UsageError
from agl_stream.infra.servers.engine import CONFIG_FOLDER, Engine, read_properties, write_properties
from agl_stream.infra.servers.kafka import fill
from agl_stream.supervise import free_ports
from agl_stream.supervise.ports import is_free


def test_properties_are_written_and_read_again(tmp_path: Path) -> None:
    values = {"a.b": "1", "jaas": 'Login required username="x" password="a=b";', "empty": ""}
    write_properties(tmp_path / "p", values)
    assert read_properties(tmp_path / "p") == values
    for path in CONFIG_FOLDER.glob("*.properties"):
        assert read_properties(path), path.name


def test_topics_are_not_made_by_asking_for_them() -> None:
    assert read_properties(CONFIG_FOLDER / "kafka.properties")["auto.create.topics.enable"] == "false"


def test_only_the_places_of_a_value_are_filled() -> None:
    places = {"{port}": "9", "{controller_port}": "8"}
    assert fill("SSL://h:{port},CONTROLLER://h:{controller_port}", places) == "SSL://h:9,CONTROLLER://h:8"
    assert fill("RULE:[1:$1]/[a-z]{2,8}/{}", places) == "RULE:[1:$1]/[a-z]{2,8}/{}"


def test_ports_are_the_wanted_the_kept_the_preferred_or_free_ones(tmp_path: Path) -> None:
    preferred, wanted = free_ports(2)
    first = Engine(tmp_path).keep_ports("a", "b", preferred={"a": preferred})
    assert first["a"] == preferred and first["b"] not in (preferred, wanted) and is_free(first["b"])
    assert Engine(tmp_path).keep_ports("a", "b", preferred={"a": wanted}) == first
    assert Engine(tmp_path).keep_ports("a", "b", wanted={"a": wanted}) == {**first, "a": wanted}
    assert Engine(tmp_path).keep_ports("a", "b") == {**first, "a": wanted}


def test_a_preferred_port_in_use_gives_way_and_a_kept_one_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_ports(1)[0]))
        listener.listen()
        busy = listener.getsockname()[1]
        assert Engine(tmp_path / "one").keep_ports("a", preferred={"a": busy})["a"] != busy
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "ports.json").write_text(f'{{"a": {busy}}}')
        with pytest.raises(PortInUse, match=rf"port {busy} \(a of two\) is in use.*ports\.json"):
            Engine(tmp_path / "two").keep_ports("a")


def test_the_number_of_nodes_is_kept(tmp_path: Path) -> None:
    assert Engine(tmp_path / "a").keep_count(None) == 1
    assert Engine(tmp_path / "b").keep_count(3) == 3
    assert Engine(tmp_path / "b").keep_count(None) == 3
    with pytest.raises(UsageError, match=r"holds the data of 3 node\(s\), not of 1"):
        Engine(tmp_path / "b").keep_count(1)
