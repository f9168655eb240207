"""The group coordinator: joins, syncs, heartbeats and their deadlines.

The generation is raised when the join phase completes, not when it begins: members may commit what they
have processed while the group is being rebalanced. Deadlines are timers of the event loop, one a member.
Membership is not stored; after a restart of the broker members are unknown, join again and find their offsets.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from dataclasses import dataclass
from typing import Any

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.groups.group import Group, GroupRefused, GroupState, Member
from agl_stream.infra.embedded.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    needs_known_id: bool
    """From JoinGroup version 4 on: a dynamic member gets its id first and joins with it, so retries leave no ghosts."""


class MemberIdRequired(GroupRefused):
    """The member has to join again with the id it is given here."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id


class GroupCoordinator:
    """All groups. Requests that are refused raise GroupRefused."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._groups: dict[str, Group] = {}

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def _known(self, group_id: str) -> Group:
        if not group_id:
            raise GroupRefused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # Join

    async def join(self, request: Join) -> tuple[Group, Member]:
        """Wait for the group to gather; returns it in the generation that this member now belongs to."""
        config = self._config
        if not request.group_id:
            raise GroupRefused(ErrorCode.INVALID_GROUP_ID)
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            raise GroupRefused(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups[request.group_id] = Group(request.group_id)
        try:
            member, must_rebalance = self._admit(group, request)
        finally:
            self._forget_if_unused(group)
        if not must_rebalance:
            self._seen(group, member)
            return group, member
        _answer(member.join, GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS))
        member.join = waiting = self._loop.create_future()
        self._prepare(group)
        self._complete_join_if_ready(group)
        try:
            await waiting
        except asyncio.CancelledError:
            self._seen(group, member)
            raise
        return group, member

    def _admit(self, group: Group, request: Join) -> tuple[Member, bool]:
        """The member that joins, and whether the group has to rebalance for it."""
        replaced = request.member_id or group.instances.get(request.instance_id or "")
        if not group.accepts(request.protocol_type, request.protocols, without=replaced):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id:
            return self._admit_known(group, request)
        new_id = f"{_printable(request.instance_id or request.client_id) or 'member'}-{uuid.uuid4().hex}"
        if request.instance_id is not None and request.instance_id in group.instances:
            return self._admit_restarted(group, request, new_id)
        self._check_room(group)
        if request.instance_id is None and request.needs_known_id:
            expiry = self._loop.call_later(request.session_timeout_ms / 1000, self._drop_pending, group, new_id)
            group.pending[new_id] = expiry
            raise MemberIdRequired(new_id)
        return self._add(group, request, new_id), True

    def _admit_known(self, group: Group, request: Join) -> tuple[Member, bool]:
        expiry = group.pending.pop(request.member_id, None)
        if expiry is not None:
            expiry.cancel()
            return self._add(group, request, request.member_id), True
        member = group.member(request.member_id, request.instance_id)
        unchanged = member.protocols == request.protocols
        self._update(group, member, request)
        if group.state is GroupState.COMPLETING:
            return member, not unchanged
        if group.state is GroupState.STABLE:
            return member, not unchanged or group.leader_id == member.member_id
        return member, True

    def _admit_restarted(self, group: Group, request: Join, new_id: str) -> tuple[Member, bool]:
        """A static member whose process started again: it takes over; the earlier one is fenced."""
        old = group.members[group.instances[request.instance_id or ""]]
        self._stop_timer(old)
        fenced = GroupRefused(ErrorCode.FENCED_INSTANCE_ID)
        _answer(old.join, fenced)
        _answer(old.sync, fenced)
        member = group.replace(old, new_id)
        unchanged = member.protocols == request.protocols
        self._update(group, member, request)
        keeps_assignment = group.state is GroupState.STABLE and unchanged
        return member, not keeps_assignment

    def _check_room(self, group: Group) -> None:
        if len(group.members) + len(group.pending) >= self._config.group_max_size:
            raise GroupRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _add(self, group: Group, request: Join, member_id: str) -> Member:
        member = Member(member_id, request.instance_id, request.client_id, request.client_host)
        self._update(group, member, request)
        group.add(member)
        return member

    def _update(self, group: Group, member: Member, request: Join) -> None:
        member.session_timeout_seconds = request.session_timeout_ms / 1000
        member.rebalance_timeout_seconds = request.rebalance_timeout_ms / 1000
        member.protocols = request.protocols
        group.protocol_type = request.protocol_type
        self._seen(group, member)

    # Rebalance

    def _prepare(self, group: Group) -> None:
        """Begin a rebalance unless one is under way. An empty group waits a little for others to come."""
        if group.state is GroupState.PREPARING:
            return
        delay = self._config.group_initial_rebalance_delay_ms / 1000 if group.state is GroupState.EMPTY else 0.0
        group.state = GroupState.PREPARING
        _cancel(group.sync_timer)
        group.join_not_before = self._loop.time() + delay
        group.join_deadline = group.join_not_before + group.rebalance_timeout_seconds
        for member in group.members.values():
            _answer(member.sync, GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS))
        self._arm_rebalance(group, group.join_not_before if delay else group.join_deadline)

    def _arm_rebalance(self, group: Group, when: float) -> None:
        _cancel(group.rebalance_timer)
        group.rebalance_timer = self._loop.call_at(when, self._rebalance_due, group)

    def _rebalance_due(self, group: Group) -> None:
        if group.state is not GroupState.PREPARING:
            return
        now = self._loop.time()
        self._complete_join_if_ready(group)
        if group.state is not GroupState.PREPARING:
            return
        if now < group.join_deadline:
            self._arm_rebalance(group, group.join_deadline)
        else:
            self._complete_join(group)

    def _complete_join_if_ready(self, group: Group) -> None:
        if group.state is GroupState.PREPARING and group.all_joined and self._loop.time() >= group.join_not_before:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """End the join phase with those who came. Static members stay: their process may be starting again."""
        for member in list(group.members.values()):
            if not member.awaits_join and member.instance_id is None:
                self._stop_timer(member)
                group.drop(member)
        joined = [member for member in group.members.values() if member.awaits_join]
        if group.members and not joined:
            group.join_deadline = self._loop.time() + group.rebalance_timeout_seconds
            self._arm_rebalance(group, group.join_deadline)
            return
        _cancel(group.rebalance_timer)
        if joined and not group.members[group.leader_id or ""].awaits_join:
            group.leader_id = joined[0].member_id
        group.next_generation()
        if group.members:
            group.sync_timer = self._loop.call_later(
                group.rebalance_timeout_seconds, self._drop_unsynced, group, group.generation
            )
        for member in joined:
            self._seen(group, member)
            _answer(member.join, None)
        self._forget_if_unused(group)

    def _drop_unsynced(self, group: Group, generation: int) -> None:
        """Members that joined and never asked for their assignment hold up the others."""
        if group.generation != generation or group.state not in (GroupState.COMPLETING, GroupState.STABLE):
            return
        for member in [member for member in group.members.values() if not member.synced and not member.is_waiting]:
            self.remove(group, member)

    # Sync, heartbeat, leave

    async def sync(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, assignments: dict[str, bytes]
    ) -> tuple[Group, bytes]:
        """The member's assignment; waits for the leader's SyncGroup, which brings everybody's."""
        group = self._known(group_id)
        member = group.current_member(member_id, generation, instance_id)
        if group.state is GroupState.PREPARING:
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        self._seen(group, member)
        member.synced = True
        if group.state is GroupState.COMPLETING:
            if member.member_id == group.leader_id:
                self._assign(group, assignments)
            else:
                _answer(member.sync, GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync = self._loop.create_future()
                try:
                    await member.sync
                except asyncio.CancelledError:
                    self._seen(group, member)
                    raise
        return group, member.assignment

    def _assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        group.state = GroupState.STABLE
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            self._seen(group, member)
            _answer(member.sync, None)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> None:
        group = self._known(group_id)
        self._seen(group, group.current_member(member_id, generation, instance_id))
        if group.state is GroupState.PREPARING:
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """A member goes; a static one may be named by its instance id alone."""
        group = self._known(group_id)
        if member_id in group.pending:
            self._drop_pending(group, member_id)
            return
        if not member_id and instance_id is not None:
            member_id = group.instances.get(instance_id, "")
        self.remove(group, group.member(member_id, instance_id))

    def check_commit(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> None:
        """Whether offsets may be committed: by a current member, or from outside while the group has no members.

        The empty id is a group like others here, without members: clients of before named groups commit under it.
        """
        group = self._groups.get(group_id)
        if group is None or not group.members:
            if generation >= 0:
                raise GroupRefused(ErrorCode.ILLEGAL_GENERATION if group is None else ErrorCode.UNKNOWN_MEMBER_ID)
            return
        member = group.current_member(member_id, generation, instance_id)
        if group.state is GroupState.COMPLETING:
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        self._seen(group, member)

    # Members that go away

    def _seen(self, group: Group, member: Member) -> None:
        """The member is alive now; its session timer runs on and looks at this when it fires."""
        member.last_seen = self._loop.time()
        if member.timer is None and member.session_timeout_seconds:
            member.timer = self._loop.call_later(member.session_timeout_seconds, self._session_due, group, member)

    def _session_due(self, group: Group, member: Member) -> None:
        member.timer = None
        if group.members.get(member.member_id) is not member:
            return
        now = self._loop.time()
        if member.is_waiting:
            member.last_seen = now
        due = member.last_seen + member.session_timeout_seconds
        if now < due:
            member.timer = self._loop.call_at(due, self._session_due, group, member)
            return
        logger.info("group %r: member %s sent no heartbeat in time and is removed", group.group_id, member.member_id)
        self.remove(group, member)

    def _drop_pending(self, group: Group, member_id: str) -> None:
        expiry = group.pending.pop(member_id, None)
        _cancel(expiry)
        self._complete_join_if_ready(group)
        self._forget_if_unused(group)

    def remove(self, group: Group, member: Member) -> None:
        """Take a member out and rebalance the others."""
        self._stop_timer(member)
        group.drop(member)
        unknown = GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        _answer(member.join, unknown)
        _answer(member.sync, unknown)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(group)
        if not group.members and not group.pending:
            self._complete_join(group)
        else:
            self._complete_join_if_ready(group)

    def _stop_timer(self, member: Member) -> None:
        _cancel(member.timer)
        member.timer = None

    def _forget_if_unused(self, group: Group) -> None:
        if not group.members and not group.pending:
            _cancel(group.rebalance_timer)
            _cancel(group.sync_timer)
            self._groups.pop(group.group_id, None)

    def close(self) -> None:
        """Cancel every timer and everyone who waits."""
        for group in self._groups.values():
            for timer in (group.rebalance_timer, group.sync_timer, *group.pending.values()):
                _cancel(timer)
            for member in group.members.values():
                self._stop_timer(member)


def _answer(waiting: asyncio.Future[Any] | None, outcome: GroupRefused | None) -> None:
    if waiting is None or waiting.done():
        return
    if outcome is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(outcome)


def _printable(name: str) -> str:
    """A client's name, fit for ids and log lines."""
    return re.sub(r"[^\w.-]", "_", name[:80], flags=re.ASCII)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
