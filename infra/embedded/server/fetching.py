"""Fetch: what is there now, or after a wait for more. Records go from the file to the socket, not through here.

A fetch that waits is a future, a timer and an entry with each of its partitions; no task is switched to until an
append or the timer resolves it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from agl_stream.infra.embedded.log.batch import CorruptBatch
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import LEADER_EPOCH, Caller, Node
from agl_stream.infra.embedded.server.outgoing import FileSlice

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
_SLICE_FROM_BYTES = 32 * 1024
"""Fewer bytes are read and sent along with the rest of the answer: that is one system call less, and one packet."""


def fetch(node: Node, request: Message, caller: Caller) -> Message | asyncio.Future[Message]:
    """Read; waits up to max_wait for min_bytes, answering at once when a partition has an error.

    A consumer over its quota gets an empty answer and the time to wait.
    """
    plan = _Plan(node, request, caller.client_id)
    answer = plan.read()
    if plan.is_complete or request["max_wait"] <= 0:
        return plan.charged(answer)
    return plan.wait(request["max_wait"] / 1000)


class _Plan:
    """One fetch: what is wanted, and how much of it the last read() found."""

    def __init__(self, node: Node, request: Message, client_id: str) -> None:
        self._node = node
        self._client_id = client_id
        self._committed_only = request["isolation_level"] == READ_COMMITTED
        self._min_bytes: int = request["min_bytes"]
        self._topics: list[tuple[str, list[tuple[PartitionLog | None, Message]]]] = [
            (
                topic["topic"],
                [(node.catalogue.partition(topic["topic"], p["partition"]), p) for p in topic["partitions"]],
            )
            for topic in request["topics"]
        ]
        budget = min(request["max_bytes"], node.config.fetch_max_bytes)
        quota = node.quotas.fetch_budget(client_id)
        self._budget = budget if quota is None else min(budget, quota)
        self._found_bytes = 0
        self._failed = False

    def read(self) -> Message:
        """The answer as of now."""
        self._found_bytes, self._failed = 0, False
        return {
            "responses": [
                {"topic": name, "partitions": [self._read(log, wanted) for log, wanted in partitions]}
                for name, partitions in self._topics
            ]
        }

    @property
    def is_complete(self) -> bool:
        """Whether the last answer need not wait for more."""
        return self._failed or self._found_bytes >= self._min_bytes

    def charged(self, answer: Message) -> Message:
        throttle_ms = self._node.quotas.charge_fetched(self._client_id, self._found_bytes)
        return {"responses": (), "throttle_time": throttle_ms} if throttle_ms else answer

    def wait(self, seconds: float) -> asyncio.Future[Message]:
        """Read again when something was appended, until there is enough or the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        logs = [log for _, partitions in self._topics for log, _ in partitions if log is not None]
        woken = False

        def wake() -> None:
            """Appends of one turn of the loop are looked at together."""
            nonlocal woken
            if not woken:
                woken = True
                loop.call_soon(look)

        def look(time_is_over: bool = False) -> None:
            nonlocal woken
            woken = False
            if future.done():
                return
            try:
                answer = self.read()
                if self.is_complete or time_is_over:
                    future.set_result(self.charged(answer))
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                future.set_exception(error)

        timer = loop.call_later(seconds, look, True)

        def ended(_: asyncio.Future[Message]) -> None:
            timer.cancel()
            for log in logs:
                log.waiters.discard(wake)

        future.add_done_callback(ended)
        for log in logs:
            log.waiters.add(wake)
        return future

    def _read(self, log: PartitionLog | None, wanted: Message) -> Message:
        answer: Message = {"partition_index": wanted["partition"], "records": b"", "high_watermark": -1}
        error = ErrorCode.NONE
        if log is None or log.deleted:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted.get("current_leader_epoch", -1) > LEADER_EPOCH:
            error = ErrorCode.UNKNOWN_LEADER_EPOCH
        else:
            error = self._read_log(log, wanted, answer)
        if error is not ErrorCode.NONE:
            answer["error_code"] = error
            self._failed = True
        return answer

    def _read_log(self, log: PartitionLog, wanted: Message, answer: Message) -> ErrorCode:
        offset, stable = wanted["fetch_offset"], log.last_stable_offset
        answer.update(high_watermark=log.end_offset, last_stable_offset=stable, log_start_offset=log.start_offset)
        if not log.start_offset <= offset <= log.end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        limit = min(wanted["partition_max_bytes"], self._budget - self._found_bytes)
        if not self._found_bytes:
            limit = max(limit, 1)
        end = stable if self._committed_only else log.end_offset
        if offset < end and limit > 0:
            try:
                answer["records"] = _records(log, offset, limit, end)
            except (CorruptBatch, OSError) as error:
                logger.error("%r: cannot read from offset %d: %s", log, offset, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._found_bytes += len(answer["records"])
        answer["aborted_transactions"] = self._aborted(log, offset, end)
        return ErrorCode.NONE

    def _aborted(self, log: PartitionLog, offset: int, end: int) -> list[dict[str, Any]] | None:
        if not self._committed_only:
            return None
        return [
            {"producer_id": aborted.producer_id, "first_offset": aborted.first_offset}
            for aborted in log.aborted_between(offset, end)
        ]


def _records(log: PartitionLog, offset: int, max_bytes: int, end_offset: int) -> bytes | FileSlice:
    found = log.locate(offset, max_bytes, end_offset)
    if found is None:
        return b""
    segment, position, size_bytes = found
    if size_bytes < _SLICE_FROM_BYTES:
        return os.pread(segment.fd, size_bytes, position)
    return FileSlice(segment.fd, position, size_bytes)
