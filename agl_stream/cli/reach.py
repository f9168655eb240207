"""Reaching the broker and the registry from a verb, with the error a person can act on."""

# confluent_kafka.admin defines these names for import and does not list them as exported.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agl_stream import connections
from agl_stream.errors import EngineUnreachable
from agl_stream.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

# librdkafka logs every failed connection attempt; the verb itself says once that nobody answers.
_silent = logging.getLogger("agl_stream.kafka.cli")
_silent.setLevel(logging.CRITICAL)


def client_config(settings: Settings) -> dict[str, Any]:
    """librdkafka settings that every client of a verb shares."""
    return {
        **connections.librdkafka(settings),
        "client.id": "agl-stream-cli",
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 500,
        "logger": _silent,
    }


def broker_unreachable(settings: Settings, why: object) -> EngineUnreachable:
    return EngineUnreachable(
        f"no Kafka broker answers at {settings.bootstrap_servers} ({why}); start one with `agl-stream up`, "
        "or set AGL_STREAM_BOOTSTRAP_SERVERS (--bootstrap-servers)"
    )


def new_admin_client(settings: Settings) -> AdminClient:
    """An admin client, not yet connected."""
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_config(settings))


def reach_broker(settings: Settings) -> tuple[AdminClient, ClusterMetadata]:
    """An admin client and the cluster's metadata. Blocks and raises as connections.first_answer."""
    from confluent_kafka.admin import AdminClient

    refusal = connections.Refusal(settings)
    config = client_config(settings)
    config["error_cb"] = refusal.note
    admin = AdminClient(config)
    return admin, connections.first_answer(admin, settings, refusal)
