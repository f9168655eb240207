"""One interface over the three clients, so that a case is written once.

Calls block and have deadlines. An answer of the engine that is an error is raised as Refused, with the protocol's
error code, whatever the client makes of it. What a client cannot do is declared in its `lacks`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

START, END = -2, -1
"""Positions for `assign`."""
SECONDS = 20.0
"""How long a call may take before it is an error of the case."""


class Ability(Enum):
    """What not every client can do."""

    ALL_CODECS = "snappy, lz4 and zstd"
    REBALANCES = "rebalances of members that are polled in turn"
    COOPERATIVE = "cooperative rebalancing"
    NEW_GROUP_PROTOCOL = "group.protocol=consumer (KIP-848)"
    OFFSETS_BY_ADMIN = "ListOffsets by the admin client"
    INCREMENTAL_CONFIGS = "changing single settings"
    DELETE_GROUPS = "deleting groups"
    ALTER_OFFSETS = "changing a group's offsets from outside"
    DELETE_OFFSETS = "deleting a group's offsets"
    REMOVE_MEMBERS = "removing members from outside"
    GROUP_STATES = "listing groups by state"


class Partition(NamedTuple):
    topic: str
    number: int = 0


class Refused(Exception):
    """The engine's answer was an error; `code` is the protocol's."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Record:
    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    acks: int = -1
    compression: str = "none"
    linger_ms: int = 0
    batch_bytes: int | None = None
    max_request_bytes: int = 30_000_000
    idempotent: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    group: str | None = None
    reset: str = "earliest"
    """earliest, latest or none"""
    committed_only: bool = False
    min_bytes: int = 1
    max_wait_ms: int = 100
    max_bytes: int = 50_000_000
    partition_max_bytes: int = 1_000_000
    session_timeout_ms: int = 6_000
    heartbeat_ms: int = 200
    max_poll_interval_ms: int = 60_000
    instance_id: str | None = None
    strategies: tuple[str, ...] = ("range",)
    auto_commit: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    state: str
    """Kafka's name: Stable, Empty, Dead, PreparingRebalance or CompletingRebalance."""
    protocol: str
    members: list[str] = field(default_factory=list)
    """Member ids."""


class Producer(Protocol):
    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Hand a record over; partition number -1 leaves the choice to the client."""
        ...

    def flush(self) -> list[Partition | Refused | int]:
        """Wait for every record since the last flush: its offset, or why it was refused, in the order of sending."""
        ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Consumer) -> None:
        """Commit a group's offsets with the transaction."""
        ...

    def close(self) -> None: ...


class Consumer(Protocol):
    rebalances: int
    """How many times partitions were assigned."""

    def subscribe(self, *topics: str) -> None: ...

    def assign(self, positions: Mapping[Partition, int]) -> None: ...

    def poll(self, seconds: float = 0.05) -> list[Record]: ...

    def assignment(self) -> set[Partition]: ...

    def position(self, partition: Partition) -> int: ...

    def seek(self, partition: Partition, offset: int) -> None: ...

    def pause(self, partition: Partition) -> None: ...

    def resume(self, partition: Partition) -> None: ...

    def commit(self, offsets: Mapping[Partition, tuple[int, str]] | None = None) -> None:
        """The positions, or these offsets with their notes."""
        ...

    def committed(self, partition: Partition) -> int | None: ...

    def ends(self, partition: Partition) -> tuple[int, int]:
        """(earliest, latest) offset"""
        ...

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None: ...

    def close(self) -> None: ...


class Admin(Protocol):
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def topics(self) -> set[str]: ...

    def partitions(self, topic: str) -> list[int]: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def config(self, topic: str) -> dict[str, tuple[str, bool]]:
        """(value, whether it was set for this topic) of each setting"""
        ...

    def broker_config(self) -> dict[str, str]: ...

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set or, with None, reset single settings."""
        ...

    def delete_records(self, partition: Partition, before: int) -> int:
        """Returns the new earliest offset."""
        ...

    def cluster(self) -> tuple[str, list[int]]:
        """(cluster id, broker ids)"""
        ...

    def groups(self) -> set[str]: ...

    def group(self, group: str) -> Group: ...

    def delete_group(self, group: str) -> None: ...

    def group_offsets(self, group: str) -> dict[Partition, tuple[int, str]]: ...

    def set_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    def delete_group_offsets(self, group: str, partition: Partition) -> None: ...

    def groups_in_state(self, state: str) -> set[str]: ...

    def remove_member(self, group: str, member_id: str) -> None: ...

    def list_offset(self, partition: Partition, timestamp: int, *, committed_only: bool = False) -> int:
        """ListOffsets: -1 latest, -2 earliest, -3 the record with the largest timestamp."""
        ...

    def close(self) -> None: ...


class Client(Protocol):
    name: str
    lacks: Mapping[Ability, str]

    def producer(self, bootstrap_servers: str, settings: ProducerSettings) -> Producer: ...

    def consumer(self, bootstrap_servers: str, settings: ConsumerSettings) -> Consumer: ...

    def admin(self, bootstrap_servers: str) -> Admin: ...


def matches(refused: Any, *codes: int) -> bool:
    """Whether an outcome is a refusal with one of these codes."""
    return isinstance(refused, Refused) and refused.code in codes
