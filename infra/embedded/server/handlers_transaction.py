"""Producer ids and transactions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from agl_stream.infra.embedded.groups.group import GroupRefused
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.durably import durably
from agl_stream.infra.embedded.server.handlers_group import check_offset, offset_row
from agl_stream.infra.embedded.server.node import Caller, Node
from agl_stream.infra.embedded.transactions.coordinator import PendingOffset

logger = logging.getLogger(__name__)


def init_producer_id(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    """A producer id, or the next epoch of a transactional one."""
    name = request["transactional_id"]
    if name is None:
        try:
            return {"producer_id": node.catalogue.new_producer_id(), "producer_epoch": 0}
        except OSError as error:
            logger.error("no producer ids can be reserved (%s)", error.strerror)
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "producer_id": -1, "producer_epoch": -1}
    if not name:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1}
    known_id, known_epoch = request.get("producer_id", -1), request.get("producer_epoch", -1)
    expected = (known_id, known_epoch) if known_id >= 0 else None
    error, producer_id, epoch = node.transactions.init_producer(name, request["transaction_timeout"], expected)
    if error is ErrorCode.PRODUCER_FENCED and caller.version < 4:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    answer = {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
    return durably(node, [node.transactions], answer)


def _check(node: Node, request: Message, caller: Caller, prefix: str = "") -> ErrorCode:
    """Whether the caller is the current producer; PRODUCER_FENCED is only known from version 2 on."""
    error = node.transactions.check(
        request[f"{prefix}transactional_id"], request[f"{prefix}producer_id"], request[f"{prefix}producer_epoch"]
    )
    if error is ErrorCode.PRODUCER_FENCED and caller.version < 2:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def add_partitions_to_txn(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    """All partitions of the request or, when one is unknown, none."""
    prefix = "v3_and_below_"
    error = _check(node, request, caller, prefix)
    wanted = [(topic["name"], number) for topic in request[f"{prefix}topics"] for number in topic["partitions"]]
    unknown = {partition for partition in wanted if node.catalogue.partition(*partition) is None}
    if error is ErrorCode.NONE and not unknown:
        error = node.transactions.add_partitions(request[f"{prefix}transactional_id"], set(wanted))

    def outcome(partition: tuple[str, int]) -> ErrorCode:
        if error is not ErrorCode.NONE:
            return error
        if partition in unknown:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED if unknown else ErrorCode.NONE

    answer = {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": number, "partition_error_code": outcome((topic["name"], number))}
                    for number in topic["partitions"]
                ],
            }
            for topic in request[f"{prefix}topics"]
        ]
    }
    return durably(node, [node.transactions], answer)


def add_offsets_to_txn(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    error = _check(node, request, caller)
    if error is ErrorCode.NONE:
        error = node.transactions.add_group(request["transactional_id"])
    return durably(node, [node.transactions], {"error_code": error})


def txn_offset_commit(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    """Keep offsets that become committed if the transaction does."""
    error = node.transactions.check(request["transactional_id"], request["producer_id"], request["producer_epoch"])
    if error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    group_id = request["group_id"]
    if not group_id:
        error = ErrorCode.INVALID_GROUP_ID
    if error is ErrorCode.NONE and request.get("generation_id", -1) >= 0:
        try:
            node.groups.check_commit(
                group_id, request["member_id"], request["generation_id"], request.get("group_instance_id")
            )
        except GroupRefused as refusal:
            error = refusal.error
    accepted: list[PendingOffset] = []
    checked: dict[tuple[str, int], ErrorCode] = {}
    for topic in request["topics"]:
        for wanted in topic["partitions"]:
            refused = error or check_offset(node, topic["name"], wanted)
            checked[topic["name"], wanted["partition_index"]] = refused
            if not refused:
                (name, number), offset, epoch, metadata = offset_row(topic["name"], wanted)
                accepted.append((group_id, name, number, offset, epoch, metadata))
    if accepted:
        outcome = node.transactions.add_offsets(request["transactional_id"], accepted)
        if outcome is not ErrorCode.NONE:
            checked = dict.fromkeys(checked, outcome)
    answer = {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": wanted["partition_index"],
                        "error_code": checked[topic["name"], wanted["partition_index"]],
                    }
                    for wanted in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }
    return durably(node, [node.transactions], answer)


def end_txn(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    error = _check(node, request, caller)
    if error is ErrorCode.NONE:
        error = node.transactions.end(request["transactional_id"], request["committed"])
    if error is not ErrorCode.NONE:
        return {"error_code": error}
    marked = node.transactions.marked_logs(request["transactional_id"])
    return durably(node, [node.transactions, *marked], {"error_code": error})
