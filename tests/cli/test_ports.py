"""Which port is used when the wanted one, the default one or none is free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_stream.errors import PortInUse
from agl_stream.supervise import claim_port, free_ports
from agl_stream.supervise.ports import is_free


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_ports(1)[0]))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_wanted_port_in_use_is_an_error_that_names_the_option(busy_port: int) -> None:
    with pytest.raises(PortInUse, match=f"port {busy_port} .--broker-port. is in use"):
        claim_port(busy_port, 9092, option="--broker-port")


def test_a_default_in_use_gives_way(busy_port: int) -> None:
    port, replaced = claim_port(None, busy_port, option="--broker-port")
    assert replaced and port != busy_port and is_free(port)


def test_a_free_default_and_a_free_wanted_port_are_taken() -> None:
    first, second = free_ports(2)
    assert claim_port(None, first, option="--x") == (first, False)
    assert claim_port(second, first, option="--x") == (second, False)


def test_ports_chosen_together_differ() -> None:
    first, _ = claim_port(None, free_ports(1)[0], option="--x")
    assert claim_port(None, first, option="--y", taken=[first])[0] != first
    with pytest.raises(PortInUse):
        claim_port(first, 1, option="--y", taken=[first])
    assert len(set(free_ports(20))) == 20


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest for port in free_ports(5))
