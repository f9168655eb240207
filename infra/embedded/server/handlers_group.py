"""Consumer groups: membership and committed offsets."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from agl_stream.infra.embedded.groups.coordinator import Join, MemberIdRequired
from agl_stream.infra.embedded.groups.group import Group, GroupRefused, GroupState
from agl_stream.infra.embedded.groups.offsets import OffsetKey
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.durably import durably
from agl_stream.infra.embedded.server.node import Caller, Node

logger = logging.getLogger(__name__)

NO_OFFSET = -1
_GROUP_TYPE = "classic"


async def join_group(node: Node, request: Message, caller: Caller) -> Message:
    join = Join(
        group_id=request["group_id"],
        member_id=request["member_id"],
        instance_id=request.get("group_instance_id"),
        client_id=caller.client_id,
        client_host=caller.host,
        session_timeout_ms=request["session_timeout"],
        rebalance_timeout_ms=max(request.get("rebalance_timeout", 0), request["session_timeout"]),
        protocol_type=request["protocol_type"],
        protocols={protocol["name"]: protocol["metadata"] for protocol in request["protocols"]},
        needs_known_id=caller.version >= 4,
    )
    try:
        group, member = await node.groups.join(join)
    except MemberIdRequired as refusal:
        return _join_refused(refusal.error, refusal.member_id)
    except GroupRefused as refusal:
        return _join_refused(refusal.error, join.member_id)
    return {
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader_id,
        "member_id": member.member_id,
        "members": _metadata(group) if member.member_id == group.leader_id else (),
    }


def _join_refused(error: ErrorCode, member_id: str) -> Message:
    return {"error_code": error, "generation_id": -1, "protocol_name": "", "leader": "", "member_id": member_id}


def _metadata(group: Group) -> list[Message]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "metadata": member.protocols[group.protocol or ""],
        }
        for member in group.members.values()
    ]


async def sync_group(node: Node, request: Message, caller: Caller) -> Message:
    assignments = {entry["member_id"]: entry["assignment"] for entry in request["assignments"]}
    try:
        group, assignment = await node.groups.sync(
            request["group_id"],
            request["member_id"],
            request["generation_id"],
            request.get("group_instance_id"),
            assignments,
        )
    except GroupRefused as refusal:
        return {"error_code": refusal.error, "assignment": b""}
    return {"protocol_type": group.protocol_type, "protocol_name": group.protocol, "assignment": assignment}


def heartbeat(node: Node, request: Message, caller: Caller) -> Message:
    return _error_of(
        lambda: node.groups.heartbeat(
            request["group_id"], request["member_id"], request["generation_id"], request.get("group_instance_id")
        )
    )


def _error_of(action: Callable[[], None]) -> Message:
    try:
        action()
    except GroupRefused as refusal:
        return {"error_code": refusal.error}
    return {}


def leave_group(node: Node, request: Message, caller: Caller) -> Message:
    if caller.version < 3:
        return _error_of(lambda: node.groups.leave(request["group_id"], request["member_id"], None))
    answers: list[Message] = []
    for identity in request["members"]:
        member_id, instance_id = identity["member_id"], identity["group_instance_id"]
        answer = _error_of(
            lambda member_id=member_id, instance_id=instance_id: node.groups.leave(
                request["group_id"], member_id, instance_id
            )
        )
        answers.append({"member_id": member_id, "group_instance_id": instance_id, **answer})
    return {"members": answers}


def consumer_group_heartbeat(node: Node, request: Message, caller: Caller) -> Message:
    """The new group protocol (KIP-848) is not spoken; the answer says so, and what to do."""
    return {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": "the embedded broker speaks the classic group protocol only; set group.protocol=classic",
    }


def offset_commit(node: Node, request: Message, caller: Caller) -> Message | Awaitable[Message]:
    """Commit; all partitions share a refusal of the member, each has its own for topic and metadata."""
    group_id = request["group_id"]
    try:
        node.groups.check_commit(
            group_id,
            request["member_id"],
            request["generation_id_or_member_epoch"],
            request.get("group_instance_id"),
        )
        refused = ErrorCode.NONE
    except GroupRefused as refusal:
        refused = refusal.error
    accepted: list[tuple[OffsetKey, int, int, str]] = []
    topics: list[Message] = []
    for topic in request["topics"]:
        partitions: list[Message] = []
        for wanted in topic["partitions"]:
            error = refused or check_offset(node, topic["name"], wanted)
            if not error:
                accepted.append(offset_row(topic["name"], wanted))
            partitions.append({"partition_index": wanted["partition_index"], "error_code": error})
        topics.append({"name": topic["name"], "partitions": partitions})
    if not accepted:
        return {"topics": topics}
    try:
        node.offsets.commit(group_id, accepted)
    except OSError as error:
        logger.error("group %r: offsets not committed (%s)", group_id, error.strerror)
        for topic in topics:
            for partition in topic["partitions"]:
                partition["error_code"] = partition["error_code"] or ErrorCode.COORDINATOR_NOT_AVAILABLE
        return {"topics": topics}
    return durably(node, [node.offsets], {"topics": topics})


def check_offset(node: Node, topic: str, wanted: Message) -> ErrorCode:
    """Whether an offset to be committed is for a partition that exists, with a note of bearable size."""
    if node.catalogue.partition(topic, wanted["partition_index"]) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(wanted["committed_metadata"] or "") > node.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def offset_row(topic: str, wanted: Message) -> tuple[OffsetKey, int, int, str]:
    return (
        OffsetKey(topic, wanted["partition_index"]),
        wanted["committed_offset"],
        wanted.get("committed_leader_epoch", -1),
        wanted["committed_metadata"] or "",
    )


def offset_fetch(node: Node, request: Message, caller: Caller) -> Message:
    stable = request.get("require_stable", False)
    if caller.version >= 8:
        groups = [
            {"group_id": group["group_id"], "topics": _committed(node, group["group_id"], group["topics"], stable)}
            for group in request["groups"]
        ]
        return {"groups": groups}
    return {"topics": _committed(node, request["group_id"], request["topics"], stable)}


def _committed(node: Node, group_id: str, topics: list[Message] | None, stable: bool) -> list[Message]:
    offsets = node.offsets.of(group_id)
    wanted: dict[str, Iterable[int]] = {}
    if topics is None:
        for key in offsets:
            wanted[key.topic] = [*wanted.get(key.topic, ()), key.partition]
    else:
        wanted = {topic["name"]: topic["partition_indexes"] for topic in topics}

    def answer(key: OffsetKey) -> Message:
        if stable and node.transactions.has_pending_offset(group_id, key):
            return {
                "partition_index": key.partition,
                "committed_offset": NO_OFFSET,
                "metadata": "",
                "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT,
            }
        committed = offsets.get(key)
        return {
            "partition_index": key.partition,
            "committed_offset": NO_OFFSET if committed is None else committed.offset,
            "committed_leader_epoch": -1 if committed is None else committed.leader_epoch,
            "metadata": "" if committed is None else committed.metadata,
        }

    return [
        {"name": name, "partitions": [answer(OffsetKey(name, number)) for number in numbers]}
        for name, numbers in wanted.items()
    ]


def describe_groups(node: Node, request: Message, caller: Caller) -> Message:
    return {"groups": [_describe(node, group_id) for group_id in request["groups"]]}


def _describe(node: Node, group_id: str) -> Message:
    group = node.groups.get(group_id)
    if group is None:
        state = GroupState.EMPTY if group_id in node.offsets else "Dead"
        return {"group_id": group_id, "group_state": state, "protocol_type": "consumer" if state != "Dead" else ""}
    return {
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol or "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": f"/{member.client_host}",
                "member_metadata": member.protocols.get(group.protocol or "", b""),
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


def list_groups(node: Node, request: Message, caller: Caller) -> Message:
    """Groups that are active or have offsets. Filters are names in any case; every group is of the classic type."""
    wanted_states = {state.lower() for state in request.get("states_filter") or ()}
    wanted_types = {kind.lower() for kind in request.get("types_filter") or ()}
    if wanted_types and _GROUP_TYPE not in wanted_types:
        return {"groups": ()}
    active = {group.group_id: (group.protocol_type, str(group.state)) for group in node.groups.groups()}
    empty = {
        group_id: ("consumer", str(GroupState.EMPTY)) for group_id in node.offsets.groups() if group_id not in active
    }
    return {
        "groups": [
            {"group_id": group_id, "protocol_type": protocol_type, "group_state": state, "group_type": _GROUP_TYPE}
            for group_id, (protocol_type, state) in {**active, **empty}.items()
            if not wanted_states or state.lower() in wanted_states
        ]
    }


def delete_groups(node: Node, request: Message, caller: Caller) -> Message:
    answers: list[Message] = []
    for group_id in request["groups_names"]:
        if node.groups.get(group_id) is not None:
            answers.append({"group_id": group_id, "error_code": ErrorCode.NON_EMPTY_GROUP})
        elif group_id not in node.offsets:
            answers.append({"group_id": group_id, "error_code": ErrorCode.GROUP_ID_NOT_FOUND})
        else:
            answers.append({"group_id": group_id, "error_code": _delete_offsets(node, group_id)})
    return {"results": answers}


def offset_delete(node: Node, request: Message, caller: Caller) -> Message:
    """Forget single committed offsets, but of topics that a member of the group reads."""
    group_id = request["group_id"]
    if not group_id:
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    group = node.groups.get(group_id)
    if group is None and group_id not in node.offsets:
        return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND}
    if group is not None and group.protocol_type != "consumer":
        return {"error_code": ErrorCode.NON_EMPTY_GROUP}
    topics: list[Message] = []
    for topic in request["topics"]:
        numbers = [wanted["partition_index"] for wanted in topic["partitions"]]
        if group is not None and group.may_read(topic["name"]):
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            error = _delete_offsets(node, group_id, [OffsetKey(topic["name"], number) for number in numbers])
        partitions = [{"partition_index": number, "error_code": error} for number in numbers]
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


def _delete_offsets(node: Node, group_id: str, keys: list[OffsetKey] | None = None) -> ErrorCode:
    try:
        node.offsets.delete(group_id, keys)
    except OSError as error:
        logger.error("group %r: offsets not deleted (%s)", group_id, error.strerror)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE
