"""Settings of the embedded broker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agl_stream.errors import SettingError
from agl_stream.infra.embedded.log import topic_config

MIB = 1024 * 1024
_AT_LEAST_ONE = (
    "default_partitions",
    "max_request_bytes",
    "queued_max_request_bytes",
    "max_connections",
    "max_connections_per_ip",
    "segment_bytes",
    "node_id",
)
FlushPolicy = Literal["close", "interval", "every-write"]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What can be set. Names in the comments are Kafka's, where Kafka has the setting."""

    node_id: int = 1
    default_partitions: int = 1
    """num.partitions: of topics created without a count, or by auto-creation."""
    auto_create_topics: bool = False
    """auto.create.topics.enable: create what a client asks metadata for. Off, so that a typing error makes no topic."""
    max_partitions: int = 10_000
    """Partitions of all topics together; each costs an open file."""

    max_request_bytes: int = 64 * MIB
    """socket.request.max.bytes: a longer frame closes the connection."""
    max_message_bytes: int = 16 * MIB
    """message.max.bytes: default of a topic's max.message.bytes."""
    fetch_max_bytes: int = 55 * MIB
    """fetch.max.bytes: bound of one fetch response, save for a single larger batch."""
    queued_max_request_bytes: int = 128 * MIB
    """queued.max.request.bytes: requests read and not answered yet, of all connections together. Above it only one
    connection is read from, until there is room again."""
    max_connections: int = 1_000
    """max.connections: further ones are closed at once."""
    max_connections_per_ip: int | None = None
    """max.connections.per.ip: as max_connections, of one address."""
    max_connection_rate: float | None = None
    """max.connection.creation.rate: new connections a second, as a mean over some seconds; further ones are closed."""
    connection_idle_seconds: float = 600.0
    """connections.max.idle.ms: also of a connection whose client takes no more of an answer."""
    request_read_seconds: float = 30.0
    """A frame that has begun must be complete after this time, or the connection is closed."""
    takeover_seconds: float = 2.0
    """How long a start waits for the folder and the port, which a process that is just ending may still have."""
    metrics_port: int | None = None
    """Where GET /metrics is answered, 0 for a free port; None: nowhere."""
    stop_seconds: float = 5.0
    """How long a stop waits for clients to take their answers, and for the disk."""

    producer_byte_rate: float | None = None
    """Quota of each client id without one of its own (AlterClientQuotas): bytes a second it may send."""
    consumer_byte_rate: float | None = None
    """As producer_byte_rate: bytes a second it may fetch."""
    request_percentage: float | None = None
    """As producer_byte_rate: share of the broker's time; 100 is all of it."""
    quota_windows: int = 11
    """quota.window.num: seconds over which rates are measured. A client that was silent may send that many seconds'
    worth, less one, at once."""

    flush_policy: FlushPolicy = "close"
    """When data is forced to disk. Always when a segment is closed and at a graceful stop; "interval" also every
    `flush_interval_seconds`; "every-write" also before each acknowledgement. A kill of the process loses nothing
    under any policy; the policies differ in what a power cut can take."""
    flush_interval_seconds: float = 1.0
    housekeeping_seconds: float = 15.0
    """log.retention.check.interval.ms: how often retention, compaction and expiry are looked at."""
    segment_bytes: int = 128 * MIB
    """log.segment.bytes: default of a topic's segment.bytes; also what a start after a kill has to verify at most."""
    retention_ms: int = 7 * 86_400_000
    """log.retention.ms: default of a topic's retention.ms."""

    group_initial_rebalance_delay_ms: int = 250
    """group.initial.rebalance.delay.ms: how long an empty group waits for further members."""
    group_min_session_timeout_ms: int = 1_000
    """group.min.session.timeout.ms"""
    group_max_session_timeout_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    group_max_size: int = 1_000
    """group.max.size"""
    offsets_retention_ms: int = 7 * 86_400_000
    """offsets.retention.minutes: committed offsets of a group without members are kept this long."""
    offset_metadata_max_bytes: int = 4_096
    """offset.metadata.max.bytes"""

    transaction_max_timeout_ms: int = 900_000
    """transaction.max.timeout.ms"""
    transactional_id_expiration_ms: int = 7 * 86_400_000
    """transactional.id.expiration.ms"""
    producer_id_expiration_ms: int = 86_400_000
    """producer.id.expiration.ms: idempotence state of a silent producer is kept this long."""

    topic_defaults: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises SettingError for values that cannot work."""
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"broker setting {name} is {value}; it must be at least 1")
        if self.quota_windows < 2:
            raise SettingError(f"broker setting quota_windows is {self.quota_windows}; it must be at least 2")
        for name in ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "max_connection_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"broker setting {name} is {value}; it must be above 0, or left out for no limit")
        if self.flush_policy not in ("close", "interval", "every-write"):
            raise SettingError(
                f"broker setting flush_policy is {self.flush_policy!r}; use close, interval or every-write"
            )
        defaults = topic_config.DEFAULTS | {
            "max.message.bytes": str(self.max_message_bytes),
            "segment.bytes": str(self.segment_bytes),
            "retention.ms": str(self.retention_ms),
        }
        object.__setattr__(self, "topic_defaults", defaults)
