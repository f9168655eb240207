"""Client quotas: looking at them and changing them. They are by client id; there are no users to give one to."""

from __future__ import annotations

import math

from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import Caller, Node
from agl_stream.infra.embedded.server.quotas import KEYS

_CLIENT_ID = "client-id"
_KNOWN_TYPES = (_CLIENT_ID, "user", "ip")
_EXACTLY, _DEFAULT, _ANY = 0, 1, 2


class _QuotaRefused(Exception):
    """A request about a quota that cannot be served; the message says why."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def alter_client_quotas(node: Node, request: Message, caller: Caller) -> Message:
    """Set and remove quotas of a client id, or of the default of all client ids (a null name)."""
    answers: list[Message] = []
    for entry in request["entries"]:
        answer: Message = {"entity": entry["entity"], "error_message": None}
        try:
            client_id = _client_id(entry["entity"])
            changes = {op["key"]: _value(op) for op in entry["ops"]}
            if not request["validate_only"]:
                node.quotas.alter(client_id, changes)
        except _QuotaRefused as refusal:
            answer.update(error_code=refusal.error, error_message=str(refusal))
        except OSError as error:
            answer.update(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=f"not stored: {error.strerror}")
        answers.append(answer)
    return {"entries": answers}


def _client_id(entity: list[Message]) -> str | None:
    types = [part["entity_type"] for part in entity]
    if types != [_CLIENT_ID]:
        named = " and ".join(types) or "nothing"
        raise _QuotaRefused(
            ErrorCode.INVALID_REQUEST,
            f"a quota of {named}: the embedded broker has quotas of client-id only. "
            "Connections are limited by its settings max_connections_per_ip and max_connection_rate",
        )
    if entity[0]["entity_name"] == "":
        raise _QuotaRefused(ErrorCode.INVALID_REQUEST, "an empty client-id; null is the default of all client ids")
    return entity[0]["entity_name"]


def _value(op: Message) -> float | None:
    if op["key"] not in KEYS:
        raise _QuotaRefused(ErrorCode.INVALID_REQUEST, f"unknown quota {op['key']}; known are {', '.join(KEYS)}")
    if op["remove"]:
        return None
    if not 0 < op["value"] < math.inf:
        raise _QuotaRefused(ErrorCode.INVALID_REQUEST, f"quota {op['key']} is {op['value']:g}; it must be above 0")
    return op["value"]


def describe_client_quotas(node: Node, request: Message, caller: Caller) -> Message:
    """Quotas that were altered and match every component of the filter."""
    components = request["components"]
    types = [component["entity_type"] for component in components]
    unknown = [kind for kind in types if kind not in _KNOWN_TYPES]
    if unknown or len(set(types)) != len(types):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": f"entity types {', '.join(types)}: each of {', '.join(_KNOWN_TYPES)} once at most",
            "entries": None,
        }
    if any(kind != _CLIENT_ID for kind in types) or (request["strict"] and not types):
        return {"entries": ()}  # no quota has such an entity
    return {
        "entries": [
            {
                "entity": [{"entity_type": _CLIENT_ID, "entity_name": name}],
                "values": [{"key": key, "value": value} for key, value in sorted(quotas.items())],
            }
            for name, quotas in node.quotas.altered().items()
            if all(_matches(name, component) for component in components)
        ]
    }


def _matches(name: str | None, component: Message) -> bool:
    if component["match_type"] == _EXACTLY:
        return name is not None and name == component["match"]
    return name is None if component["match_type"] == _DEFAULT else True
