"""The tables of docs/embedded-broker.md that the code knows: APIs, what is not spoken, metrics.

`python -m agl_stream.infra.embedded.server.reference_doc docs/embedded-broker.md` brings the file up to date; a test
checks that it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from agl_stream.infra.embedded.protocol.apis import APIS
from agl_stream.infra.embedded.protocol.unspoken import UNSPOKEN
from agl_stream.infra.embedded.server.metrics_catalogue import catalogue

_MADE = "made by python -m agl_stream.infra.embedded.server.reference_doc, do not edit"
_NO_USERS = "refused: SECURITY_DISABLED, there are no users"
_NO_TOKENS = "refused: DELEGATION_TOKEN_AUTH_DISABLED"
_NO_LOGIN = "refused: ILLEGAL_SASL_STATE, nobody logs in"
_NOTES = {
    "produce": "up to version 9: topics by name",
    "fetch": "up to version 12: topics by name; whole fetches, no incremental sessions",
    "list_offsets": "every spec; the earliest local offset is the earliest, the latest tiered one is -1",
    "metadata": "up to version 8; librdkafka 2.16 sends malformed requests from version 9 on",
    "alter_configs": "of topics; the broker's settings are given at its start: INVALID_REQUEST",
    "incremental_alter_configs": "of topics; the broker's settings are given at its start: INVALID_REQUEST",
    "write_txn_markers": "how administrators abort a hanging transaction",
    "alter_replica_log_dirs": "there is one folder: LOG_DIR_NOT_FOUND for another",
    "elect_leaders": "ELECTION_NOT_NEEDED: the only broker leads every partition",
    "alter_partition_reassignments": "to this broker only: INVALID_REPLICA_ASSIGNMENT otherwise",
    "list_partition_reassignments": "always empty",
    "describe_client_quotas": "of client ids",
    "alter_client_quotas": "producer_byte_rate, consumer_byte_rate, request_percentage of client ids; "
    "INVALID_REQUEST for users and addresses",
    "describe_acls": _NO_USERS,
    "create_acls": _NO_USERS,
    "delete_acls": _NO_USERS,
    "describe_user_scram_credentials": _NO_USERS,
    "alter_user_scram_credentials": _NO_USERS,
    "create_delegation_token": _NO_TOKENS,
    "renew_delegation_token": _NO_TOKENS,
    "expire_delegation_token": _NO_TOKENS,
    "describe_delegation_token": _NO_TOKENS,
    "sasl_handshake": _NO_LOGIN,
    "sasl_authenticate": _NO_LOGIN,
    "consumer_group_heartbeat": "refused: UNSUPPORTED_VERSION, with the advice to set group.protocol=classic "
    "(KIP-848 is not spoken)",
    "list_config_resources": "topics and the broker",
}


def _apis() -> str:
    lines = ["| key | API | versions | differs from Apache Kafka |", "|---|---|---|---|"]
    for key, api in sorted(APIS.items()):
        name = "".join(part.title() for part in api.name.split("_"))
        versions = f"{api.first}" if api.first == api.last else f"{api.first} to {api.last}"
        lines.append(f"| {key} | {name} | {versions} | {_NOTES.get(api.name, '')} |")
    return "\n".join(lines)


def _unspoken() -> str:
    return ", ".join(f"{name} ({key})" for key, name in sorted(UNSPOKEN.items())) + "."


def _metrics() -> str:
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    lines += [f"| `{metric.name}` | {metric.kind} | {metric.help} |" for metric in catalogue()]
    return "\n".join(lines)


_SECTIONS: dict[str, Callable[[], str]] = {"apis": _apis, "not spoken": _unspoken, "metrics": _metrics}


def with_current_tables(document: str) -> str:
    """The document with what is between the marks replaced; ValueError when it lacks a mark."""
    for name, make in _SECTIONS.items():
        begin, end = f"<!-- {name}: {_MADE} -->", f"<!-- end of {name} -->"
        before, found_begin, rest = document.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"the document lacks the lines {begin} and {end}")
        document = f"{before}{begin}\n{make()}\n{end}{after}"
    return document


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_current_tables(path.read_text()))
