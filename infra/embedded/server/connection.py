"""One client connection: frames in, answers out, in order, with bounds on both sides.

Requests of a connection are answered one after another, as in Kafka. While one waits (a long poll, a join)
the next ones queue; a long queue stops reading. While the client does not take its answers none is made.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agl_stream.infra.embedded.server import dispatch

if TYPE_CHECKING:
    from agl_stream.infra.embedded.server.node import Node

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 64 * 1024
_FRAME_GROWTH_BYTES = 1024 * 1024
_MAX_QUEUED_REQUESTS = 64
_LENGTH = struct.Struct(">i")


class Connection(asyncio.BufferedProtocol):
    """Protocol of one connection; `on_lost` is called once when it ends."""

    def __init__(
        self, node: Node, on_made: Callable[[Connection], bool], on_lost: Callable[[Connection], None]
    ) -> None:
        self._node = node
        self._on_made = on_made
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._received_bytes = 0
        self._frame = bytearray()
        self._frame_bytes = 0
        self._frame_filled = 0
        self._queue: deque[bytes | bytearray] = deque()
        self._queued_bytes = 0
        self._waiting: asyncio.Task[bytes | None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._host = "?"
        self.peer = "?"
        self.last_read = self._loop.time()

    # Transport events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self._host, self.peer = address[0], f"{address[0]}:{address[1]}"
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._on_made(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._queue.clear()
        if self._waiting is not None:
            self._waiting.cancel()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame_bytes:
            if self._frame_filled == len(self._frame):
                self._grow_frame()
            return memoryview(self._frame)[self._frame_filled :]
        return self._received[self._received_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_read = self._loop.time()
        if self._frame_bytes:
            self._frame_filled += nbytes
            if self._frame_filled == self._frame_bytes:
                frame, self._frame, self._frame_bytes = self._frame, bytearray(), 0
                self._enqueue(frame)
        else:
            self._received_bytes += nbytes
            self._split_received()
        self._pump()

    # Frames

    def _grow_frame(self) -> None:
        """Room for more of a large frame, as it arrives: a length alone must not cost memory."""
        self._frame.extend(bytes(min(self._frame_bytes - len(self._frame), max(len(self._frame), _FRAME_GROWTH_BYTES))))

    def _split_received(self) -> None:
        at, end = 0, self._received_bytes
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            if not 0 < length <= self._node.config.max_request_bytes:
                limit = self._node.config.max_request_bytes
                self.refuse(f"a frame of {length} bytes; max_request_bytes is {limit}")
                return
            start, stop = at + _LENGTH.size, at + _LENGTH.size + length
            if stop > end:
                if length > _RECEIVE_BYTES - _LENGTH.size:
                    self._frame = bytearray(self._received[start:end])
                    self._frame_filled, self._frame_bytes = len(self._frame), length
                    at = end
                break
            self._enqueue(bytes(self._received[start:stop]))
            at = stop
        if at:
            rest = bytes(self._received[at:end])
            self._received[: len(rest)] = rest
            self._received_bytes = len(rest)

    @property
    def reads_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._frame_bytes or self._received_bytes) and not self._reading_paused

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._waiting is not None or bool(self._queue)

    def _enqueue(self, frame: bytes | bytearray) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        crowded = len(self._queue) > _MAX_QUEUED_REQUESTS or self._queued_bytes > self._node.config.max_request_bytes
        if crowded and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    # Answers

    def _pump(self) -> None:
        """Answer queued requests until one has to wait, or the client takes no more."""
        while self._queue and self._waiting is None and not self._writing_paused and not self._transport.is_closing():
            frame = self._queue.popleft()
            self._queued_bytes -= len(frame)
            try:
                response = dispatch.answer(self._node, memoryview(frame), self._host)
            except dispatch.Refused as error:
                self.refuse(str(error))
                return
            if response is None or isinstance(response, bytes):
                self._send(response)
            else:
                self._waiting = self._loop.create_task(_awaited(response))
                self._waiting.add_done_callback(self._answered)
        if self._reading_paused and len(self._queue) <= _MAX_QUEUED_REQUESTS // 2 and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _answered(self, task: asyncio.Task[bytes | None]) -> None:
        self._waiting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.refuse(str(error))
            return
        self._send(task.result())
        self._pump()

    def _send(self, response: bytes | None) -> None:
        if response is not None and not self._transport.is_closing():
            self._transport.write(response)

    def refuse(self, reason: str) -> None:
        """Close because of what the client sent or did not send, with one line in the log."""
        if not self._transport.is_closing():
            logger.warning("connection from %s closed: %s", self.peer, " ".join(reason.split())[:300])
        self._queue.clear()
        self._transport.close()

    def close(self) -> None:
        """End after the answers that are already made."""
        self._transport.close()

    def abort(self) -> None:
        """End now, also when the client takes nothing any more."""
        self._transport.abort()


async def _awaited(response: object) -> bytes | None:
    return await response  # type: ignore[misc,no-any-return]
