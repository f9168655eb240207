"""Users, rights and tokens: there are none, and each request for them is told so in its own terms.

Answered and not left out, so that a client's error names what is missing instead of a closed connection. The codes
are those of an Apache Kafka without an authorizer and without token authentication.
"""

from __future__ import annotations

from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import Caller, Node

_WHY = "the embedded broker knows no users and serves loopback only; use Apache Kafka where rights are needed"
_DISABLED: Message = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _WHY}


def describe_acls(node: Node, request: Message, caller: Caller) -> Message:
    return dict(_DISABLED)


def create_acls(node: Node, request: Message, caller: Caller) -> Message:
    return {"results": [_DISABLED for _ in request["creations"]]}


def delete_acls(node: Node, request: Message, caller: Caller) -> Message:
    return {"filter_results": [_DISABLED for _ in request["filters"]]}


def describe_user_scram_credentials(node: Node, request: Message, caller: Caller) -> Message:
    """Of all users: none. Refused user by user, since librdkafka 2.16 dies of a refusal of the whole request."""
    users = {wanted["name"] for wanted in request["users"] or ()}
    return {"results": [{"user": user, "credential_infos": (), **_DISABLED} for user in sorted(users)]}


def alter_user_scram_credentials(node: Node, request: Message, caller: Caller) -> Message:
    users = sorted({change["name"] for change in (*request["deletions"], *request["upsertions"])})
    return {"results": [{"user": user, **_DISABLED} for user in users]}


def delegation_token(node: Node, request: Message, caller: Caller) -> Message:
    """Of creating, renewing, expiring and describing tokens alike."""
    return {"error_code": ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}


def sasl_handshake(node: Node, request: Message, caller: Caller) -> Message:
    """A client that wants to log in: nobody can, and none needs to."""
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}


def sasl_authenticate(node: Node, request: Message, caller: Caller) -> Message:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": _WHY, "auth_bytes": b""}
