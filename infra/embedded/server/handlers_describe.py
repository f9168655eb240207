"""What administrators look at beyond topics and groups: folders, producers, transactions, pages of partitions."""

from __future__ import annotations

import os
import time

from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.handlers_admin import BROKER_RESOURCE, TOPIC_RESOURCE
from agl_stream.infra.embedded.server.handlers_cluster import describe_partitions
from agl_stream.infra.embedded.server.node import Caller, Node
from agl_stream.infra.embedded.server.topics import TopicRefused
from agl_stream.infra.embedded.transactions.coordinator import State, Transaction

_MAX_PARTITIONS_A_PAGE = 2_000
_STATES = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.COMMITTING: "PrepareCommit",
    State.ABORTING: "PrepareAbort",
    State.COMMITTED: "CompleteCommit",
    State.ABORTED: "CompleteAbort",
}


def describe_log_dirs(node: Node, request: Message, caller: Caller) -> Message:
    """The one data folder, how full its file system is, and the bytes of each partition."""
    wanted = request["topics"]
    chosen: dict[str, list[PartitionLog]] = {}
    if wanted is None:
        for log in node.catalogue.logs():
            chosen.setdefault(log.topic, []).append(log)
    else:
        for topic in wanted:
            found = [node.catalogue.partition(topic["topic"], number) for number in topic["partitions"]]
            if logs := [log for log in found if log is not None]:
                chosen[topic["topic"]] = logs
    answer: Message = {
        "log_dir": str(node.folder),
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": log.partition, "partition_size": log.size_bytes, "offset_lag": 0}
                    for log in logs
                ],
            }
            for name, logs in chosen.items()
        ],
    }
    try:
        disk = os.statvfs(node.folder)
        answer.update(total_bytes=disk.f_frsize * disk.f_blocks, usable_bytes=disk.f_frsize * disk.f_bavail)
    except OSError:
        answer["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
    return {"results": [answer]}


def alter_replica_log_dirs(node: Node, request: Message, caller: Caller) -> Message:
    """There is one folder: a partition that is asked to be there is there, and no other folder is known."""
    topics: dict[str, list[Message]] = {}
    for folder in request["dirs"]:
        for topic in folder["topics"]:
            for number in topic["partitions"]:
                error = ErrorCode.NONE
                if node.catalogue.partition(topic["name"], number) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif folder["path"] != str(node.folder):
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                topics.setdefault(topic["name"], []).append({"partition_index": number, "error_code": error})
    return {"results": [{"topic_name": name, "partitions": answers} for name, answers in topics.items()]}


def describe_producers(node: Node, request: Message, caller: Caller) -> Message:
    """Producers that partitions remember, with the start of what they have open."""
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _describe_producers(node.catalogue.partition(topic["name"], number), number)
                    for number in topic["partition_indexes"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _describe_producers(log: PartitionLog | None, number: int) -> Message:
    if log is None:
        return {"partition_index": number, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    return {
        "partition_index": number,
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_seen_ms,
                "coordinator_epoch": 0 if producer.first_open_offset is not None else -1,
                "current_txn_start_offset": -1 if producer.first_open_offset is None else producer.first_open_offset,
            }
            for producer in log.producers.known()
        ],
    }


def list_transactions(node: Node, request: Message, caller: Caller) -> Message:
    """Transactional ids and their states, filtered by state, producer and age."""
    states, producers = set(request["state_filters"]), set(request["producer_id_filters"])
    least_ms = request.get("duration_filter", -1)
    now_ms = time.time_ns() // 1_000_000
    return {
        "unknown_state_filters": sorted(states - set(_STATES.values())),
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": _STATES[transaction.state],
            }
            for transaction in node.transactions.known()
            if (not states or _STATES[transaction.state] in states)
            and (not producers or transaction.producer_id in producers)
            and (least_ms < 0 or 0 <= _began_ms(transaction) <= now_ms - least_ms)
        ],
    }


def describe_transactions(node: Node, request: Message, caller: Caller) -> Message:
    return {"transaction_states": [_describe_transaction(node, name) for name in request["transactional_ids"]]}


def _describe_transaction(node: Node, name: str) -> Message:
    transaction = node.transactions.get(name)
    if transaction is None:
        return {
            "transactional_id": name,
            "error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(number)
    return {
        "transactional_id": name,
        "transaction_state": _STATES[transaction.state],
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": _began_ms(transaction),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
    }


def _began_ms(transaction: Transaction) -> int:
    """When the open transaction began; -1 when none is open."""
    return transaction.started_ms if transaction.state is State.ONGOING else -1


def write_txn_markers(node: Node, request: Message, caller: Caller) -> Message:
    """End what a producer has open on single partitions: how administrators abort a hanging transaction."""
    return {
        "markers": [
            {
                "producer_id": marker["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": _write_marker(node, marker, topic["name"], number),
                            }
                            for number in topic["partition_indexes"]
                        ],
                    }
                    for topic in marker["topics"]
                ],
            }
            for marker in request["markers"]
        ]
    }


def _write_marker(node: Node, marker: Message, topic: str, number: int) -> ErrorCode:
    log = node.catalogue.partition(topic, number)
    producer_id, epoch = marker["producer_id"], marker["producer_epoch"]
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if epoch < log.producers.epoch(producer_id):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if producer_id not in log.producers.open_producers:
        return ErrorCode.NONE
    return log.append_marker(producer_id, epoch, marker["transaction_result"]).error


def describe_topic_partitions(node: Node, request: Message, caller: Caller) -> Message:
    """Topics page by page: `next_cursor` says where to go on."""
    names = sorted({topic["name"] for topic in request["topics"]}) or node.catalogue.names()
    cursor = request["cursor"]
    first_partition = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor["topic_name"]]
        if names and names[0] == cursor["topic_name"]:
            first_partition = max(cursor["partition_index"], 0)
    room = max(1, min(request["response_partition_limit"], _MAX_PARTITIONS_A_PAGE))
    topics: list[Message] = []
    for name in names:
        if room <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        try:
            partitions = describe_partitions(node, node.catalogue.require(name))[first_partition:]
        except TopicRefused as refusal:
            topics.append({"name": name, "error_code": refusal.error})
            continue
        topics.append({"name": name, "partitions": partitions[:room]})
        if len(partitions) > room:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": first_partition + room}}
        room -= len(partitions)
        first_partition = 0
    return {"topics": topics, "next_cursor": None}


def list_config_resources(node: Node, request: Message, caller: Caller) -> Message:
    """What DescribeConfigs can be asked about; in version 0 that is client metrics, of which there are none."""
    if caller.version == 0:
        return {"client_metrics_resources": ()}
    wanted = set(request["resource_types"]) or {TOPIC_RESOURCE, BROKER_RESOURCE}
    resources: list[Message] = []
    if TOPIC_RESOURCE in wanted:
        resources += ({"resource_name": name, "resource_type": TOPIC_RESOURCE} for name in node.catalogue.names())
    if BROKER_RESOURCE in wanted:
        resources.append({"resource_name": str(node.config.node_id), "resource_type": BROKER_RESOURCE})
    return {"config_resources": resources}
