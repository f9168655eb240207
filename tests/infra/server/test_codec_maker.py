"""The first request of a kind waits for its codec; nobody else does."""

from __future__ import annotations

import importlib.abc
import struct
import sys
import threading

import pytest

from agl_stream.infra.embedded.protocol import codecs
from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.testing import BrokerThread
from tests.infra.test_hostile import API_VERSIONS_REQUEST, header, still_serves

NAME, VERSION = "describe_acls", 2
KEY = next(api.key for api in APIS.values() if api.name == NAME)
MODULE = f"kio.schema.{NAME}.v{VERSION}"


class HeldImport(importlib.abc.MetaPathFinder):
    """Stops who imports one module until `release` is set."""

    def __init__(self) -> None:
        self.reached, self.release = threading.Event(), threading.Event()

    def find_spec(self, fullname, path, target=None):
        if fullname == MODULE:
            self.reached.set()
            assert self.release.wait(30)
        return None


@pytest.fixture
def held(monkeypatch):
    """The codec is not made, and its making stops in the middle; that of the other clients is there."""
    codecs.codec_of("api_versions", 0)
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(codecs._made, (NAME, VERSION), raising=False)
    finder = HeldImport()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield finder
    finder.release.set()


@pytest.fixture
def acls_frame(request_frame):
    """Made before the import is held: the client needs the same classes."""
    body = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
    return request_frame(NAME, VERSION, body)


def correlation(frame: bytes | None) -> int:
    assert frame is not None
    return struct.unpack_from(">i", frame)[0]


def test_others_are_served_while_a_codec_is_made(connect, acls_frame, held):
    with BrokerThread() as broker:
        waiting = [connect(broker.bootstrap_servers) for _ in range(3)]
        for connection in waiting:
            pipelined = struct.pack(">i", len(API_VERSIONS_REQUEST)) + header(18, 0, 8)
            connection.send(struct.pack(">i", len(acls_frame)) + acls_frame + pipelined)
        assert held.reached.wait(10)
        for _ in range(20):
            assert still_serves(connect, broker.bootstrap_servers)
        assert all(not connection.is_closed_within(0.01) for connection in waiting), "they wait"
        held.release.set()
        for connection in waiting:
            connection._socket.settimeout(10)
            assert [correlation(connection.read_frame()) for _ in range(2)] == [7, 8], "in order, as they were asked"


def test_a_frame_in_pieces_waits_as_well(connect, acls_frame, held):
    with BrokerThread() as broker:
        connection = connect(broker.bootstrap_servers)
        connection.send(struct.pack(">i", len(acls_frame)) + acls_frame[:9])
        assert still_serves(connect, broker.bootstrap_servers)
        connection.send(acls_frame[9:])
        assert held.reached.wait(10)
        assert still_serves(connect, broker.bootstrap_servers)
        held.release.set()
        assert correlation(connection.read_frame()) == 7
        connection.send_frame(API_VERSIONS_REQUEST)
        assert correlation(connection.read_frame()) == 7


def test_a_client_that_leaves_while_it_waits_disturbs_nobody(connect, acls_frame, held):
    with BrokerThread() as broker:
        leaving, staying = connect(broker.bootstrap_servers), connect(broker.bootstrap_servers)
        for connection in (leaving, staying):
            connection.send_frame(acls_frame)
        assert held.reached.wait(10)
        leaving.close()
        assert still_serves(connect, broker.bootstrap_servers)
        held.release.set()
        assert correlation(staying.read_frame()) == 7


def test_a_stop_does_not_wait_for_a_codec(connect, acls_frame, held):
    with BrokerThread() as broker:
        connection = connect(broker.bootstrap_servers)
        connection.send_frame(acls_frame)
        assert held.reached.wait(10)
    assert connection.is_closed_within(1)


def test_a_burst_over_all_apis_leaves_a_running_client_alone(broker_process, connect):
    """Every codec is made, in a process that has none, beside a client that asks all the time."""
    burst = []
    for api in APIS.values():
        for version in range(api.first, api.last + 1):
            burst.append(connect(broker_process.bootstrap_servers))
            burst[-1].send_frame(header(api.key, version) + bytes(40))
    witness, answers = connect(broker_process.bootstrap_servers), 0
    burst[-1]._socket.settimeout(0.0)
    before = broker_process.cpu_seconds()
    while not _has_ended(burst[-1]):
        witness.send_frame(API_VERSIONS_REQUEST)
        assert witness.read_frame() is not None
        answers += 1
    assert broker_process.cpu_seconds() - before > 0.3, "they were being made all the while"
    assert answers > 50


def _has_ended(connection) -> bool:
    """Whether the request was answered or refused."""
    try:
        connection._socket.recv(65_536)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
