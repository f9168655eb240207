"""A consumer group: members, generation, the protocol they agree on. No clock, no I/O, no waiting.

The classic protocol of Kafka: a rebalance gathers every member's JoinGroup, then the leader's SyncGroup
carries the assignment to all.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agl_stream.infra.embedded.protocol.errors import ErrorCode


class GroupState(enum.StrEnum):
    """Names as clients print them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class GroupRefused(Exception):
    """A group request that is answered with an error code."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(slots=True, eq=False)
class Member:
    """One member. `join` and `sync` are the answers it waits for, if it does."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_seconds: float = 0.0
    rebalance_timeout_seconds: float = 0.0
    protocols: dict[str, bytes] = field(default_factory=dict)
    assignment: bytes = b""
    last_seen: float = 0.0
    synced: bool = False
    join: asyncio.Future[Any] | None = None
    sync: asyncio.Future[Any] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """A member that waits for the group is alive: it cannot heartbeat meanwhile."""
        return self.awaits_join or (self.sync is not None and not self.sync.done())

    @property
    def awaits_join(self) -> bool:
        return self.join is not None and not self.join.done()


class Group:
    """Membership and generation of one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.pending: dict[str, asyncio.TimerHandle] = {}
        self.rebalance_timer: asyncio.TimerHandle | None = None
        self.sync_timer: asyncio.TimerHandle | None = None
        self.join_not_before = 0.0
        self.join_deadline = 0.0

    # Who is it?

    def member(self, member_id: str, instance_id: str | None = None) -> Member:
        """The member; raises GroupRefused for a stranger, or for one whose static id has a newer owner."""
        if instance_id is not None and self.instances.get(instance_id, member_id) != member_id:
            raise GroupRefused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def current_member(self, member_id: str, generation: int, instance_id: str | None = None) -> Member:
        """Like member(), for a request that belongs to a generation."""
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise GroupRefused(ErrorCode.ILLEGAL_GENERATION)
        return member

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def drop(self, member: Member) -> None:
        """Forget a member; whoever joined first of the others becomes the leader."""
        self.members.pop(member.member_id, None)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, old: Member, new_id: str) -> Member:
        """Give a static member a new member id: the same place in the group for a restarted process."""
        was_leader = self.leader_id == old.member_id
        self.members.pop(old.member_id)
        new = Member(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            protocols=old.protocols,
            assignment=old.assignment,
            synced=old.synced,
        )
        self.add(new)
        if was_leader:
            self.leader_id = new_id
        return new

    # What do they speak?

    def accepts(self, protocol_type: str, protocols: dict[str, bytes], without: str | None = None) -> bool:
        """Whether a member with these protocols can share the group with the others."""
        others = [member for member in self.members.values() if member.member_id != without]
        if not protocol_type or not protocols:
            return False
        if not others:
            return True
        return protocol_type == self.protocol_type and any(
            all(name in member.protocols for member in others) for name in protocols
        )

    def choose_protocol(self) -> str:
        """The protocol that most members prefer among those that all know; ties go to the leader's order."""
        members = list(self.members.values())
        common = [name for name in members[0].protocols if all(name in member.protocols for member in members)]
        votes = Counter(next(name for name in member.protocols if name in common) for member in members)
        leader = self.members.get(self.leader_id or "", members[0])
        return max((name for name in leader.protocols if name in common), key=lambda name: votes[name])

    def may_read(self, topic: str) -> bool:
        """Whether a member has subscribed to a topic, or does not say in a way that we understand."""
        return any(
            topics is None or topic in topics
            for member in self.members.values()
            for topics in map(_subscribed_topics, member.protocols.values())
        )

    # Where are they?

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.awaits_join for member in self.members.values())

    @property
    def rebalance_timeout_seconds(self) -> float:
        return max((member.rebalance_timeout_seconds for member in self.members.values()), default=0.0)

    def next_generation(self) -> None:
        """The join phase is complete: everybody gets the new number. It wraps like Kafka's, to 1."""
        self.generation = self.generation % 0x7FFFFFFF + 1
        self.state = GroupState.COMPLETING if self.members else GroupState.EMPTY
        self.protocol = self.choose_protocol() if self.members else None
        for member in self.members.values():
            member.assignment, member.synced = b"", False


def _subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a consumer's subscription: a version, then an array of strings. None when it is something else."""
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        topics, at = set[str](), 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            at += 2 + length
            if length < 0 or at > len(metadata):
                return None
            topics.add(str(metadata[at - length : at], "utf-8"))
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
