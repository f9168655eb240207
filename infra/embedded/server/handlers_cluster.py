"""ApiVersions, Metadata, DescribeCluster, FindCoordinator: where things are. Everything is here."""

from __future__ import annotations

from agl_stream.infra.embedded.protocol.apis import supported_versions
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import LEADER_EPOCH, Caller, Node
from agl_stream.infra.embedded.server.topics import Topic, TopicRefused

ENDPOINT_BROKERS = 1
"""DescribeCluster asks for brokers or for controllers; there is no controller apart from this broker."""


def api_versions(node: Node, request: Message, caller: Caller) -> Message:
    return {"api_keys": supported_versions()}


def metadata(node: Node, request: Message, caller: Caller) -> Message:
    """Topics and their partitions; creates missing topics when both the client and the setting allow it."""
    wanted = request["topics"]
    everything = wanted is None or (caller.version == 0 and not wanted)
    names = node.catalogue.names() if everything else [topic["name"] for topic in wanted or ()]
    may_create = node.config.auto_create_topics and request.get("allow_auto_topic_creation", True)
    return {
        "brokers": [_broker(node)],
        "cluster_id": node.catalogue.cluster_id,
        "controller_id": node.config.node_id,
        "topics": [_describe(node, name, may_create) for name in names],
    }


def _broker(node: Node) -> Message:
    return {"node_id": node.config.node_id, "host": node.host, "port": node.port}


def _describe(node: Node, name: str, may_create: bool) -> Message:
    try:
        if may_create and name not in node.catalogue:
            node.catalogue.create(name, -1, {})
        topic = node.catalogue.require(name)
    except TopicRefused as refusal:
        return {"name": name, "error_code": refusal.error}
    return {"name": name, "partitions": describe_partitions(node, topic)}


def describe_partitions(node: Node, topic: Topic) -> list[Message]:
    """Every partition as Metadata and DescribeTopicPartitions tell it."""
    replicas = (node.config.node_id,)
    return [
        {
            "partition_index": log.partition,
            "leader_id": node.config.node_id,
            "leader_epoch": LEADER_EPOCH,
            "replica_nodes": replicas,
            "isr_nodes": replicas,
        }
        for log in topic.partitions
    ]


def describe_cluster(node: Node, request: Message, caller: Caller) -> Message:
    if request.get("endpoint_type", ENDPOINT_BROKERS) != ENDPOINT_BROKERS:
        return {"error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE, "error_message": "only brokers are described here"}
    return {
        "endpoint_type": ENDPOINT_BROKERS,
        "cluster_id": node.catalogue.cluster_id,
        "controller_id": node.config.node_id,
        "brokers": [{"broker_id": node.config.node_id, "host": node.host, "port": node.port}],
    }


def find_coordinator(node: Node, request: Message, caller: Caller) -> Message:
    """This broker coordinates every group and every transaction."""
    if request.get("key_type", 0) not in (0, 1):
        error: Message = {"error_code": ErrorCode.INVALID_REQUEST, "node_id": -1, "host": "", "port": -1}
    else:
        error = _broker(node)
    if caller.version >= 4:
        return {"coordinators": [{"key": key, **error} for key in request["coordinator_keys"]]}
    return error
