"""The embedded engine: a single-node Kafka-protocol broker and a Confluent-compatible schema registry.

Both run as processes (`agl-stream broker`, `agl-stream registry`) and inside an application's event loop.
They are for one machine: no replication, no ACLs, no KIP-848 groups, and they say so when asked.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_stream.infra.embedded.config import BrokerConfig
    from agl_stream.infra.embedded.registry.service import EmbeddedRegistry
    from agl_stream.infra.embedded.server.broker import EmbeddedBroker

__all__ = ["BrokerConfig", "EmbeddedBroker", "EmbeddedRegistry"]

_HOMES = {"BrokerConfig": "config", "EmbeddedBroker": "server.broker", "EmbeddedRegistry": "registry.service"}


def __getattr__(name: str) -> Any:
    """Import on first use: the registry must not pay for the broker's codecs, nor the broker for aiohttp."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
