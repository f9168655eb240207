"""Produce, ListOffsets, OffsetForLeaderEpoch, DeleteRecords: the records of partitions, save for reading them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from agl_stream.infra.embedded.log.batch import BatchHeader, CorruptBatch
from agl_stream.infra.embedded.log.partition_log import Appended, PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.fetching import READ_COMMITTED
from agl_stream.infra.embedded.server.node import LEADER_EPOCH, Caller, Node, Unanswered

logger = logging.getLogger(__name__)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def produce(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    """Append; with acks=0 nothing is answered. Waits for the disk under the every-write policy."""
    if request["acks"] not in (-1, 0, 1):
        return _refuse_acks(request)
    topics: list[Message] = []
    written: dict[PartitionLog, list[Message]] = {}
    for topic in request["topic_data"]:
        partitions: list[Message] = []
        for data in topic["partition_data"]:
            log = node.catalogue.partition(topic["name"], data["index"])
            outcome = _append(node, log, data["records"])
            row: Message = {
                "index": data["index"],
                "error_code": outcome.error,
                "base_offset": outcome.base_offset,
                "log_start_offset": -1 if log is None else log.start_offset,
                "error_message": outcome.message,
            }
            if log is not None and outcome.error is ErrorCode.NONE:
                written.setdefault(log, []).append(row)
            partitions.append(row)
        topics.append({"name": topic["name"], "partition_responses": partitions})
    throttle_ms = node.quotas.charge_produced(caller.client_id, caller.request_bytes)
    answer: Message = {"responses": topics, "throttle_time": throttle_ms}
    if not request["acks"]:
        answer = Unanswered(answer)
    if node.config.flush_policy == "every-write" and written:
        return _after_flush(node, written, answer)
    return answer


async def _after_flush(node: Node, written: dict[PartitionLog, list[Message]], answer: Message) -> Message:
    """Records that the disk refused are not acknowledged: an idempotent producer that sends them again adds none."""
    refused = await node.flusher.flush(written)
    for log, rows in written.items():
        error = refused.get(log)
        if error is not None:
            logger.error("%r: not forced to disk (%s)", log, error.strerror)
            message = f"the broker cannot force its log to disk: {error.strerror}"
            for row in rows:
                row.update(error_code=ErrorCode.KAFKA_STORAGE_ERROR, base_offset=-1, error_message=message)
    return answer


def _append(node: Node, log: PartitionLog | None, records: memoryview | None) -> Appended:
    if log is None:
        return Appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not records:
        return Appended(ErrorCode.CORRUPT_MESSAGE, message="no records")

    def check(header: BatchHeader) -> ErrorCode:
        if header.producer_id < 0:
            return ErrorCode.INVALID_RECORD if header.is_transactional else ErrorCode.NONE
        return node.transactions.check_batch(
            header.producer_id, header.producer_epoch, (log.topic, log.partition), header.is_transactional
        )

    return log.append(records, check=check)


def _refuse_acks(request: Message) -> Message:
    return {
        "responses": [
            {
                "name": topic["name"],
                "partition_responses": [
                    {"index": data["index"], "error_code": ErrorCode.INVALID_REQUIRED_ACKS, "base_offset": -1}
                    for data in topic["partition_data"]
                ],
            }
            for topic in request["topic_data"]
        ]
    }


def _check_leader_epoch(epoch: int) -> ErrorCode:
    """A client that has seen a newer epoch than ours talks to the wrong broker."""
    return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > LEADER_EPOCH else ErrorCode.NONE


def list_offsets(node: Node, request: Message, caller: Caller) -> Message:
    """Earliest, latest, by time, or of the largest timestamp."""
    committed_only = request.get("isolation_level", 0) == READ_COMMITTED
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                _list_offset(node.catalogue.partition(topic["name"], wanted["partition_index"]), wanted, committed_only)
                for wanted in topic["partitions"]
            ],
        }
        for topic in request["topics"]
    ]
    return {"topics": topics}


def _list_offset(log: PartitionLog | None, wanted: Message, committed_only: bool) -> Message:
    answer: Message = {"partition_index": wanted["partition_index"], "timestamp": -1, "offset": -1}
    if log is None:
        return answer | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    epoch_error = _check_leader_epoch(wanted.get("current_leader_epoch", -1))
    if epoch_error is not ErrorCode.NONE:
        return answer | {"error_code": epoch_error}
    timestamp = wanted["timestamp"]
    if timestamp == LATEST:
        answer["offset"] = log.last_stable_offset if committed_only else log.end_offset
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer["offset"] = log.start_offset
    elif timestamp < LATEST_TIERED:
        answer["error_code"] = ErrorCode.UNSUPPORTED_VERSION
    elif timestamp != LATEST_TIERED:
        find: Any = (
            log.offset_of_max_timestamp if timestamp == MAX_TIMESTAMP else lambda: log.offset_for_time(timestamp)
        )
        try:
            offset, found_ms = find()
        except (CorruptBatch, OSError) as error:
            logger.error("%r: cannot look up time %d: %s", log, timestamp, error)
            return answer | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
        if not committed_only or offset < log.last_stable_offset:
            answer["offset"], answer["timestamp"] = offset, found_ms
    if answer["offset"] >= 0:
        answer["leader_epoch"] = LEADER_EPOCH
    return answer


def offset_for_leader_epoch(node: Node, request: Message, caller: Caller) -> Message:
    """Where an epoch ends: everything here is of epoch 0."""
    topics: list[Message] = []
    for topic in request["topics"]:
        partitions: list[Message] = []
        for wanted in topic["partitions"]:
            log = node.catalogue.partition(topic["topic"], wanted["partition"])
            answer: Message = {"partition": wanted["partition"]}
            if log is None:
                answer["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif (error := _check_leader_epoch(wanted.get("current_leader_epoch", -1))) is not ErrorCode.NONE:
                answer["error_code"] = error
            elif wanted["leader_epoch"] == LEADER_EPOCH:
                answer.update(leader_epoch=LEADER_EPOCH, end_offset=log.end_offset)
            partitions.append(answer)
        topics.append({"topic": topic["topic"], "partitions": partitions})
    return {"topics": topics}


def delete_records(node: Node, request: Message, caller: Caller) -> Message:
    """Move the start of partitions forward; -1 means to the end."""
    topics: list[Message] = []
    for topic in request["topics"]:
        partitions: list[Message] = []
        for wanted in topic["partitions"]:
            log = node.catalogue.partition(topic["name"], wanted["partition_index"])
            answer: Message = {"partition_index": wanted["partition_index"], "low_watermark": -1}
            if log is None:
                answer["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offset = log.end_offset if wanted["offset"] == -1 else wanted["offset"]
                if not log.config.delete:
                    answer["error_code"] = ErrorCode.POLICY_VIOLATION
                elif not 0 <= offset <= log.end_offset:
                    answer["error_code"] = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    answer.update(_delete_before(log, offset))
            partitions.append(answer)
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


def _delete_before(log: PartitionLog, offset: int) -> Message:
    """The low watermark after the deletion: an earlier one may have gone further."""
    try:
        log.delete_before(offset)
    except OSError as error:
        logger.error("%r: cannot delete records before %d: %s", log, offset, error.strerror)
        return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    return {"low_watermark": log.start_offset}
