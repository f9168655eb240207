"""Answers that wait for the disk under the every-write policy, sharing one fsync with everyone who waits."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from agl_stream.infra.embedded.log.flushing import Flushable
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import Node


def durably(node: Node, things: Iterable[Flushable], answer: Message) -> Message | Awaitable[Message]:
    """`answer`, when what it acknowledges is as durable as the flush policy says.

    Where the disk refuses, every success in it becomes COORDINATOR_NOT_AVAILABLE: clients try again.
    """
    return _after_flush(node, things, answer) if node.config.flush_policy == "every-write" else answer


async def _after_flush(node: Node, things: Iterable[Flushable], answer: Message) -> Message:
    if await node.flusher.flush(things):
        _refuse(answer)
    return answer


def _refuse(part: Any) -> None:
    if isinstance(part, list):
        for each in part:
            _refuse(each)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name.endswith("error_code") and value == ErrorCode.NONE:
                part[name] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                _refuse(value)
