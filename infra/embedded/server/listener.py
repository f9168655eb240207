"""Accepts connections, within limits, and ends those that are idle, half-sent or not taken any further."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter

from agl_stream.infra.embedded.server.connection import RECEIVE_BYTES, Connection
from agl_stream.infra.embedded.server.node import Node
from agl_stream.infra.embedded.server.quotas import WindowedSum
from agl_stream.infra.embedded.server.request_memory import RequestMemory

logger = logging.getLogger(__name__)

_BACKLOG = 512
_ACCEPTED_A_TURN = 64
_PAUSE_SECONDS = 1.0
_CHECK_SECONDS = 5.0
_KEEPALIVE_IDLE_SECONDS = 60
_KEEPALIVE_INTERVAL_SECONDS = 15
_KEEPALIVE_PROBES = 4
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """The broker's listening sockets and all connections accepted from them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = node.config
        self.memory = RequestMemory(node.config.queued_max_request_bytes)
        self.connections: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._arrivals = WindowedSum()
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._sockets: list[socket.socket] = []
        self._watch: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()

    def open(self, host: str, port: int) -> int:
        """Listen on a port, 0 for a free one; returns it. Raises OSError when the address is in use.

        An address whose connections a dead process has left behind is free.
        """
        loop = asyncio.get_running_loop()
        try:
            for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                listening = socket.socket(family, kind)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((address[0], port))
                listening.listen(_BACKLOG)
                port = listening.getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)
        self._watch = loop.create_task(self._watch_connections())
        return port

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    # Coming

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                logger.error("cannot accept connections for %.0f s: %s", _PAUSE_SECONDS, error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_PAUSE_SECONDS, self._accept_again, listening)
                return
            self._admit(connected, address)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, connected: socket.socket, address: tuple[str, int]) -> None:
        self._node.metrics.accepted_connections += 1
        over = self._over_limit(address[0])
        if over is not None:
            self._node.metrics.turn_away(over)
            limit = getattr(self._config, over)
            logger.warning("connection from %s:%d closed: %s is %g", address[0], address[1], over, limit)
            connected.close()
            return
        connected.setblocking(False)
        _configure(connected)
        self._by_address[address[0]] += 1
        self.connections.add(Connection(connected, address, self._node, self.memory, self._received, self._lost))

    def _over_limit(self, host: str) -> str | None:
        """The setting that a further connection would be over."""
        config = self._config
        if config.max_connection_rate is not None:
            now = asyncio.get_running_loop().time()
            if self._arrivals.seconds_over(config.max_connection_rate, now) > 0:
                return "max_connection_rate"
            self._arrivals.add(1, now)
        if len(self.connections) >= config.max_connections:
            return "max_connections"
        if config.max_connections_per_ip is not None and self._by_address[host] >= config.max_connections_per_ip:
            return "max_connections_per_ip"
        return None

    # Going

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._by_address[connection.host] -= 1
        if not self._by_address[connection.host]:
            del self._by_address[connection.host]
        if not self.connections:
            self._all_gone.set()

    async def _watch_connections(self) -> None:
        """Close connections that stopped in the middle of a frame, or on which nothing moves for long."""
        read_seconds, idle_seconds = self._config.request_read_seconds, self._config.connection_idle_seconds
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_CHECK_SECONDS, read_seconds, idle_seconds))
            now = loop.time()
            for connection in list(self.connections):
                still_seconds = now - connection.last_progress
                if connection.reads_frame and still_seconds > read_seconds:
                    connection.refuse(f"a frame is incomplete after {still_seconds:.0f} s (request_read_seconds)")
                elif connection.is_stalled and still_seconds > idle_seconds:
                    connection.refuse(f"an answer is not taken for {still_seconds:.0f} s (connection_idle_seconds)")
                elif not connection.is_busy and still_seconds > idle_seconds:
                    connection.abort()

    async def close(self, patience_seconds: float) -> None:
        """Accept nothing more, let clients take the answers to what they have asked, then end all connections."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
        self._close_sockets()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._all_gone.clear()
            try:
                async with asyncio.timeout(patience_seconds):
                    await self._all_gone.wait()
            except TimeoutError:
                logger.warning(
                    "%d connections ended before their clients had taken their answers", len(self.connections)
                )
        for connection in list(self.connections):
            connection.abort()


def _configure(connected: socket.socket) -> None:
    """No delay for small answers; probes that find a peer that is gone without a word."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):  # not on every system
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
