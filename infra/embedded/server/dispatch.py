"""From a frame to its answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from agl_stream.infra.embedded.protocol.apis import (
    API_VERSIONS,
    Request,
    UnsupportedVersion,
    decode_request,
    encode_response,
    encode_unsupported_api_versions,
)
from agl_stream.infra.embedded.protocol.wire import MalformedMessage, Message
from agl_stream.infra.embedded.server import (
    handlers_admin,
    handlers_cluster,
    handlers_data,
    handlers_group,
    handlers_transaction,
)
from agl_stream.infra.embedded.server.node import Caller, Node

logger = logging.getLogger(__name__)

Handler = Callable[[Node, Message, Caller], Any]
"""Returns the answer, None for no answer, or an awaitable of either."""

HANDLERS: dict[str, Handler] = {
    "produce": handlers_data.produce,
    "fetch": handlers_data.fetch,
    "list_offsets": handlers_data.list_offsets,
    "offset_for_leader_epoch": handlers_data.offset_for_leader_epoch,
    "delete_records": handlers_data.delete_records,
    "api_versions": handlers_cluster.api_versions,
    "metadata": handlers_cluster.metadata,
    "describe_cluster": handlers_cluster.describe_cluster,
    "find_coordinator": handlers_cluster.find_coordinator,
    "create_topics": handlers_admin.create_topics,
    "create_partitions": handlers_admin.create_partitions,
    "delete_topics": handlers_admin.delete_topics,
    "describe_configs": handlers_admin.describe_configs,
    "alter_configs": handlers_admin.alter_configs,
    "incremental_alter_configs": handlers_admin.incremental_alter_configs,
    "join_group": handlers_group.join_group,
    "sync_group": handlers_group.sync_group,
    "heartbeat": handlers_group.heartbeat,
    "leave_group": handlers_group.leave_group,
    "consumer_group_heartbeat": handlers_group.consumer_group_heartbeat,
    "offset_commit": handlers_group.offset_commit,
    "offset_fetch": handlers_group.offset_fetch,
    "offset_delete": handlers_group.offset_delete,
    "describe_groups": handlers_group.describe_groups,
    "list_groups": handlers_group.list_groups,
    "delete_groups": handlers_group.delete_groups,
    "init_producer_id": handlers_transaction.init_producer_id,
    "add_partitions_to_txn": handlers_transaction.add_partitions_to_txn,
    "add_offsets_to_txn": handlers_transaction.add_offsets_to_txn,
    "txn_offset_commit": handlers_transaction.txn_offset_commit,
    "end_txn": handlers_transaction.end_txn,
}


class Refused(Exception):
    """The connection cannot go on; the message says why in one line."""


def answer(node: Node, frame: memoryview, host: str) -> bytes | Awaitable[bytes | None] | None:
    """The response frame to a request frame, None when none is wanted, or an awaitable of either.

    Raises Refused for bytes that are no request of a known API and version.
    """
    try:
        request = decode_request(frame)
    except UnsupportedVersion as error:
        if error.api.key == API_VERSIONS:
            return encode_unsupported_api_versions(error.correlation_id)
        raise Refused(str(error)) from error
    except MalformedMessage as error:
        raise Refused(str(error)) from error
    caller = Caller(request.client_id, host, request.version)
    try:
        body = HANDLERS[request.api.name](node, request.body, caller)
    except Exception as error:
        raise _failure(request, error) from error
    if body is None or isinstance(body, dict):
        return None if body is None else encode_response(request, body)
    return _answer_later(request, body)


async def _answer_later(request: Request, pending: Awaitable[Message | None]) -> bytes | None:
    try:
        body = await pending
    except Exception as error:
        raise _failure(request, error) from error
    return None if body is None else encode_response(request, body)


def _failure(request: Request, error: Exception) -> Refused:
    """A handler failed: one line for the operator, the traceback only when debugging."""
    logger.debug("%s version %d failed", request.api.name, request.version, exc_info=error)
    return Refused(f"{request.api.name} version {request.version} failed: {type(error).__name__}: {error}")
