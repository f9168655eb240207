"""One client connection: frames in, answers out, in order, with bounds on both sides.

Requests of a connection are answered one after another, as in Kafka. While one waits (a long poll, a join, the first
of its kind for its codec), while the client does not take its answer, or while it is throttled, the next ones stay
unread but for a small rest. Whole frames
are worked on in the buffer they were received into; only a frame that comes in pieces gets memory of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from agl_stream.infra.embedded.server import dispatch
from agl_stream.infra.embedded.server.outgoing import Outgoing

if TYPE_CHECKING:
    from agl_stream.infra.embedded.protocol.codecs import Codec
    from agl_stream.infra.embedded.server.node import Node
    from agl_stream.infra.embedded.server.request_memory import RequestMemory

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
"""Of the one buffer that all connections receive into, in turn."""
_MAX_REST_BYTES = 64 * 1024
_FRAME_GROWTH_BYTES = 1024 * 1024
_FRAMES_A_TURN = 32
_LENGTH = struct.Struct(">i")


class Connection:
    """Serves one accepted socket from its creation on; `on_lost` is called once when it ends."""

    def __init__(
        self,
        connected: socket.socket,
        address: tuple[str, int],
        node: Node,
        memory: RequestMemory,
        received: memoryview,
        on_lost: Callable[[Connection], None],
    ) -> None:
        """`received` is scratch space of RECEIVE_BYTES, shared with the other connections of the event loop."""
        self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        self._socket = connected
        self._node = node
        self._memory = memory
        self._received = received
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._held = 0
        self._outgoing = Outgoing(connected)
        self._waiting: dispatch.Pending | None = None
        self._codec: asyncio.Future[Codec] | None = None
        self._muted: asyncio.TimerHandle | None = None
        self._turn_over = False
        self._reading = False
        self._parked = False
        self._draining = False
        self.closed = False
        self.last_progress = self._loop.time()
        self.resume_reading()

    # What the outside asks

    @property
    def reads_frame(self) -> bool:
        """Whether a frame has begun, is not complete, and the broker waits for nothing but its rest."""
        return (self._frame is not None or bool(self._rest)) and not self._parked and not self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered, or its client throttled."""
        return bool(self._waiting or self._muted or self._codec or self._turn_over)

    @property
    def is_stalled(self) -> bool:
        """Whether an answer waits for its client to take it."""
        return bool(self._outgoing)

    @property
    def held_bytes(self) -> int:
        """Of requests that are not answered yet."""
        return self._held

    @property
    def _takes_no_request(self) -> bool:
        return self.is_busy or bool(self._outgoing) or self.closed or self._draining

    # Reading

    def resume_reading(self) -> None:
        """Read again; also called when there is room for requests again."""
        self._parked = False
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._socket, self._readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def _readable(self) -> None:
        if not self._memory.admits(self, at_any_rate=not self._takes_no_request):
            self._parked = True
            self._pause_reading()
            return
        try:
            if self._frame is None:
                count = self._socket.recv_into(self._received)
            else:
                if self._filled == len(self._frame):
                    self._grow_frame(self._frame)
                with memoryview(self._frame) as room:
                    count = self._socket.recv_into(room[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.abort()
            return
        self.last_progress = self._loop.time()
        if self._frame is None:
            self._take(self._received[:count])
        else:
            self._filled += count
            self._hold(self._filled)
            if self._filled == self._frame_bytes:
                self._answer_large(self._frame)

    def _answer_large(self, frame: bytearray) -> None:
        """The frame that was received in pieces is whole."""
        if self._lacks_codec(memoryview(frame)):
            self._pause_reading()
            return
        self._frame = None
        self._answer(memoryview(frame))
        self._settle()

    def _grow_frame(self, frame: bytearray) -> None:
        """Room for more of a large frame, as it arrives: a length alone must not cost memory."""
        frame.extend(bytes(min(self._frame_bytes - len(frame), max(len(frame), _FRAME_GROWTH_BYTES))))

    def _hold(self, held_bytes: int) -> None:
        self._memory.hold(held_bytes - self._held)
        self._held = held_bytes

    def _take(self, data: memoryview) -> None:
        """Work on what came; keep what is not a whole frame, or must wait."""
        if self._rest:
            data = memoryview(self._rest + data)
        used = 0 if self._takes_no_request else self._answer_frames(data)
        self._rest = bytes(data[used:])
        self._settle()

    def _go_on(self) -> None:
        """What kept the next request waiting is over."""
        if self._takes_no_request:
            return
        if self._frame is not None and self._filled == self._frame_bytes:
            self._answer_large(self._frame)
            return
        if self._rest:
            used = self._answer_frames(memoryview(self._rest))
            self._rest = self._rest[used:]
        self._settle()

    def _settle(self) -> None:
        """After any work: account for what is left, and read on or not."""
        if self.closed:
            return
        if self._rest and not self._takes_no_request:
            self._begin_frame()
        self._hold(len(self._rest) if self._frame is None else self._filled)
        if self._frame is None:
            self._memory.done(self)
        if len(self._rest) > _MAX_REST_BYTES:
            self._pause_reading()
        else:
            self.resume_reading()

    def _begin_frame(self) -> None:
        """The rest is the start of one frame: receive what is missing into its place."""
        if len(self._rest) < _LENGTH.size:
            return
        (self._frame_bytes,) = _LENGTH.unpack_from(self._rest)
        self._frame = bytearray(self._rest)[_LENGTH.size :]
        self._filled, self._rest = len(self._frame), b""

    # Answering

    def _answer_frames(self, data: memoryview) -> int:
        """Answer the whole frames at the start of `data` until one has to wait; returns how many bytes they are."""
        at, end, limit = 0, len(data), self._node.config.max_request_bytes
        left = _FRAMES_A_TURN
        while end - at >= _LENGTH.size and not self._takes_no_request:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 < length <= limit:
                self.refuse(f"a frame of {length} bytes; max_request_bytes is {limit}")
                break
            stop = at + _LENGTH.size + length
            if stop > end:
                break
            if not left:
                self._turn_over = True
                self._loop.call_soon(self._next_turn)
                break
            left -= 1
            frame = data[at + _LENGTH.size : stop]
            if self._lacks_codec(frame):
                break
            self._answer(frame)
            at = stop
        return at

    def _next_turn(self) -> None:
        self._turn_over = False
        self._go_on()

    def _lacks_codec(self, frame: memoryview) -> bool:
        """Whether the frame has to be kept until its codec is made; the connection goes on by itself then."""
        self._codec = self._node.codecs.wait_for(frame)
        if self._codec is None:
            return False
        self._codec.add_done_callback(self._codec_made)
        return True

    def _codec_made(self, making: asyncio.Future[Codec]) -> None:
        self._codec = None
        if self.closed or making.cancelled():
            return
        error = making.exception()
        if error is None:
            self._go_on()
        else:
            self.refuse(f"a codec cannot be made: {type(error).__name__}: {error}")

    def _answer(self, frame: memoryview) -> None:
        try:
            outcome = dispatch.answer(self._node, frame, self.host)
        except dispatch.Refused as error:
            self.refuse(str(error))
            return
        if isinstance(outcome, dispatch.Pending):
            self._waiting = outcome
            outcome.future.add_done_callback(self._answered)
        else:
            self._send(outcome)

    def _answered(self, future: asyncio.Future[object]) -> None:
        pending, self._waiting = self._waiting, None
        if self.closed or pending is None:
            return
        if future.cancelled():
            self._end_if_drained()
            return
        try:
            self._send(pending.finish())
        except dispatch.Refused as error:
            self.refuse(str(error))
            return
        self._end_if_drained()
        self._go_on()

    def _send(self, reply: dispatch.Reply) -> None:
        if reply.mute_seconds > 0:
            self._muted = self._loop.call_later(reply.mute_seconds, self._unmute)
        self._outgoing.add(reply.chunks)
        self._send_more()
        if self._outgoing and not self.closed:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        self._send_more()
        if not self._outgoing and not self.closed:
            self._loop.remove_writer(self._socket)
            self._end_if_drained()
            self._go_on()

    def _send_more(self) -> None:
        try:
            if self._outgoing.send():
                self.last_progress = self._loop.time()
        except OSError:
            self.abort()
        except EOFError as error:
            self.refuse(str(error))

    def _unmute(self) -> None:
        self._muted = None
        self._go_on()

    # The end

    def refuse(self, reason: str) -> None:
        """Close because of what the client sent or did not send, with one line in the log."""
        if not self.closed:
            self._node.metrics.refused_connections += 1
            logger.warning("connection from %s closed: %s", self.peer, " ".join(reason.split())[:300])
        self.abort()

    def drain(self) -> None:
        """Take no further request, and end when what is asked already is answered and taken. Long polls are dropped."""
        self._draining = True
        if self._waiting is not None and self._waiting.is_poll:
            self._waiting.future.cancel()
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._draining and self._waiting is None and not self._outgoing:
            self.abort()

    def abort(self) -> None:
        """End now, also when the client takes nothing any more."""
        if self.closed:
            return
        self.closed = True
        self._pause_reading()
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._outgoing.clear()
        self._rest, self._frame = b"", None
        self._hold(0)
        self._memory.done(self)
        if self._muted is not None:
            self._muted.cancel()
        if self._waiting is not None:
            self._waiting.future.cancel()
        self._on_lost(self)
