"""Which function answers which API: one entry for each that apis.py declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server import (
    fetching,
    handlers_admin,
    handlers_cluster,
    handlers_data,
    handlers_describe,
    handlers_group,
    handlers_quota,
    handlers_replica,
    handlers_security,
    handlers_transaction,
)
from agl_stream.infra.embedded.server.node import Caller, Node

Handler = Callable[[Node, Message, Caller], Any]
"""Returns the answer (Unanswered if the client wants none), or an awaitable of it.

What it takes from the request as a view of the frame must not outlive the call.
"""

HANDLERS: dict[str, Handler] = {
    "produce": handlers_data.produce,
    "fetch": fetching.fetch,
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
    "list_transactions": handlers_describe.list_transactions,
    "describe_transactions": handlers_describe.describe_transactions,
    "describe_producers": handlers_describe.describe_producers,
    "write_txn_markers": handlers_describe.write_txn_markers,
    "describe_topic_partitions": handlers_describe.describe_topic_partitions,
    "describe_log_dirs": handlers_describe.describe_log_dirs,
    "alter_replica_log_dirs": handlers_describe.alter_replica_log_dirs,
    "list_config_resources": handlers_describe.list_config_resources,
    "elect_leaders": handlers_replica.elect_leaders,
    "alter_partition_reassignments": handlers_replica.alter_partition_reassignments,
    "list_partition_reassignments": handlers_replica.list_partition_reassignments,
    "describe_client_quotas": handlers_quota.describe_client_quotas,
    "alter_client_quotas": handlers_quota.alter_client_quotas,
    "describe_acls": handlers_security.describe_acls,
    "create_acls": handlers_security.create_acls,
    "delete_acls": handlers_security.delete_acls,
    "describe_user_scram_credentials": handlers_security.describe_user_scram_credentials,
    "alter_user_scram_credentials": handlers_security.alter_user_scram_credentials,
    "create_delegation_token": handlers_security.delegation_token,
    "renew_delegation_token": handlers_security.delegation_token,
    "expire_delegation_token": handlers_security.delegation_token,
    "describe_delegation_token": handlers_security.delegation_token,
    "sasl_handshake": handlers_security.sasl_handshake,
    "sasl_authenticate": handlers_security.sasl_authenticate,
}
