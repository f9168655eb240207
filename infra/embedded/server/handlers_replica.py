"""Leaders and replicas, as far as one broker has anything to say about them: every partition is here and led here."""

from __future__ import annotations

from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import Caller, Node


def elect_leaders(node: Node, request: Message, caller: Caller) -> Message:
    """No election is ever needed: there is one candidate, and it leads."""
    topics: list[Message] = []
    for topic in request["topic_partitions"] or ():
        partitions: list[Message] = []
        for number in topic["partitions"]:
            if node.catalogue.partition(topic["topic"], number) is None:
                error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
            else:
                error, message = ErrorCode.ELECTION_NOT_NEEDED, "the only broker leads the partition"
            partitions.append({"partition_id": number, "error_code": error, "error_message": message})
        topics.append({"topic": topic["topic"], "partition_result": partitions})
    return {"replica_election_results": topics}


def alter_partition_reassignments(node: Node, request: Message, caller: Caller) -> Message:
    """The assignment to this broker is the one in force; another one is refused."""
    return {
        "allow_replication_factor_change": request.get("allow_replication_factor_change", True),
        "responses": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": wanted["partition_index"], **_reassign(node, topic["name"], wanted)}
                    for wanted in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ],
    }


def _reassign(node: Node, topic: str, wanted: Message) -> Message:
    if node.catalogue.partition(topic, wanted["partition_index"]) is None:
        return {
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": f"there is no partition {wanted['partition_index']} of {topic}",
        }
    if wanted["replicas"] is None:
        return {
            "error_code": ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "error_message": "the embedded broker is one node: nothing is being reassigned",
        }
    if list(wanted["replicas"]) != [node.config.node_id]:
        return {
            "error_code": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "error_message": f"the embedded broker is one node: broker {node.config.node_id} has every partition",
        }
    return {}


def list_partition_reassignments(node: Node, request: Message, caller: Caller) -> Message:
    """None is ever under way."""
    return {"topics": ()}
