"""The group window: joined rollouts in, closed groups out.

GRPO compares the rollouts of one prompt with each other, so a rollout can only be trained together with its
siblings. The window collects what the joiner says of each rollout until its group may close. It is pure: time
comes in as an argument, state goes out as JSON, and any order or repetition of the same events gives the same
groups, as long as no group has more members than its size.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

Event = dict[str, Any]

COMPLETE = "complete"
DEADLINE = "deadline"
EVICTED = "evicted"


@dataclass(frozen=True)
class ClosedGroup:
    """A group the window has closed, and why.

    ``members`` are the newest TripletsJoined of each sibling that reported, sorted by rollout id; ``size`` is the
    number of siblings expected. ``reason`` is ``complete`` (all reported), ``deadline`` (enough reported in time) or
    ``evicted`` (it waited while ``max_open_groups`` newer groups came; its members must not be trained).
    """

    key: str
    members: tuple[Event, ...]
    size: int
    reason: str


@dataclass(frozen=True)
class WindowConfig:
    """When a group closes.

    ``group_size`` counts for events that carry a group_id and no group_size. With ``deadline_seconds`` a group
    closes that long after its first sibling's event time, provided that ``min_siblings`` have reported (default:
    two); without it only a complete group closes. ``max_open_groups`` and ``max_settled_groups`` bound the memory.
    """

    group_size: int | None = None
    min_siblings: int = 2
    deadline_seconds: float | None = None
    max_open_groups: int = 10_000
    max_settled_groups: int = 10_000


@dataclass
class _Group:
    size: int
    opened_at_us: int
    members: dict[str, Event] = field(default_factory=dict)
    reason: str = ""
    surplus: set[str] = field(default_factory=set)


class GroupWindow:
    """Groups of rollouts on their way to a batch.

    ``offer`` events, ``take`` closed groups. Until it is taken a closed group still accepts corrections. What
    arrives after that is *late*: a revision of a rollout that the group contained is only counted; a sibling that
    reports for the first time is handed out once by ``take_late``, so that the account of the rollouts balances.
    Late, too, is whoever reports when all siblings that the group's size allows have; the first is a warning, all are
    counted as ``surplus``.
    """

    def __init__(self, config: WindowConfig | None = None) -> None:
        self.config = config or WindowConfig()
        self.counts: Counter[str] = Counter()
        self._open: OrderedDict[str, _Group] = OrderedDict()
        self._closed: OrderedDict[str, _Group] = OrderedDict()
        self._late: list[Event] = []
        # group key -> the rollouts settled with it or as late; None in earlier checkpoints, when that was all of them
        self._settled: OrderedDict[str, set[str] | None] = OrderedDict()
        self._warned_of_surplus = False

    def offer(self, event: Event) -> str:
        """Takes one TripletsJoined. Returns what it was: accepted, replaced, duplicate, outdated or late.

        A later revision replaces an earlier one until the group is taken. Never blocks; never raises for a decoded
        event.
        """
        verdict = self._fold(event)
        self.counts[verdict] += 1
        return verdict

    def _fold(self, event: Event) -> str:
        key, rollout_id = group_key(event), event["rollout_id"]
        if key in self._settled:
            return self._fold_late(key, self._settled[key], event)
        group = self._closed.get(key) or self._open.get(key)
        if group is None:
            group = self._open[key] = _Group(self._size_of(event), event["occurred_at_us"])
        # before the event is judged: also an outdated one was there first
        group.size = max(group.size, self._size_of(event))
        group.opened_at_us = min(group.opened_at_us, event["occurred_at_us"])
        known = group.members.get(rollout_id)
        if known is not None and rank(known) >= rank(event):
            return "duplicate" if rank(known) == rank(event) else "outdated"
        if rollout_id in group.surplus:
            return "late"
        # only of a closed group: an open one closes as soon as it is full
        if known is None and len(group.members) >= group.size:
            group.surplus.add(rollout_id)
            self._hand_out_late(event, key, group.size, surplus=True)
            return "late"
        group.members[rollout_id] = event
        if not group.reason:
            if len(group.members) >= group.size:
                self._close(key, COMPLETE)
            elif len(self._open) > self.config.max_open_groups:
                self._close(next(iter(self._open)), EVICTED)
        return "accepted" if known is None else "replaced"

    def _fold_late(self, key: str, settled: set[str] | None, event: Event) -> str:
        if settled is not None and event["rollout_id"] not in settled:
            size = self._size_of(event)
            self._hand_out_late(event, key, size, surplus=len(settled) >= size)
            settled.add(event["rollout_id"])
        return "late"

    def _hand_out_late(self, event: Event, key: str, size: int, *, surplus: bool) -> None:
        self._late.append(event)
        if not surplus:
            return
        self.counts["surplus"] += 1
        if not self._warned_of_surplus:
            self._warned_of_surplus = True
            log.warning(
                "%s has more members than its size of %d: %s and all further ones are dropped as late_triplets; give "
                "each group an id of its own, or its true size (group_size of its tasks, else --group-size). Other "
                "such groups are not named",
                key,
                size,
                event["rollout_id"],
            )

    def _size_of(self, event: Event) -> int:
        if event.get("group_id") is None:
            return 1
        return max(1, event.get("group_size") or self.config.group_size or 1)

    def close_due(self, now_us: int) -> None:
        """Closes the groups whose deadline has passed at ``now_us`` and that have enough siblings."""
        if self.config.deadline_seconds is None:
            return
        due = now_us - int(self.config.deadline_seconds * 1e6)
        for key, group in list(self._open.items()):
            if group.opened_at_us <= due and len(group.members) >= min(self.config.min_siblings, group.size):
                self._close(key, DEADLINE)

    def _close(self, key: str, reason: str) -> None:
        group = self._closed[key] = self._open.pop(key)
        group.reason = reason

    def take(self, groups: int, keys: Collection[str] | None = None) -> list[ClosedGroup] | None:
        """The ``groups`` groups that closed first, sorted by key, or None while there are fewer.

        With ``keys``: the groups of these keys, in place of the first, or None until all of them have closed. Taking
        settles them: the caller trains or drops every member, once.
        """
        if keys is None:
            if len(self._closed) < groups:
                return None
            keys = list(self._closed)[:groups]
        elif not all(key in self._closed for key in keys):
            return None
        taken: list[ClosedGroup] = []
        for key in keys:
            group = self._closed.pop(key)
            members = tuple(group.members[rollout_id] for rollout_id in sorted(group.members))
            taken.append(ClosedGroup(key, members, group.size, group.reason))
            self._settled[key] = {*group.members, *group.surplus}
        while len(self._settled) > self.config.max_settled_groups:
            self._settled.popitem(last=False)
        return sorted(taken, key=lambda group: group.key)

    def take_late(self) -> list[Event]:
        """First reports that came after their group had been taken; each is returned once."""
        late, self._late = self._late, []
        return sorted(late, key=lambda event: event["rollout_id"])

    @property
    def ready(self) -> int:
        """Closed groups that wait to be taken."""
        return len(self._closed)

    def missing(self) -> dict[str, tuple[int, int]]:
        """Open groups: key -> (siblings reported, siblings expected)."""
        return {key: (len(group.members), group.size) for key, group in self._open.items()}

    def reported(self) -> set[str]:
        """Rollouts in groups that have not been taken."""
        return {rid for groups in (self._open, self._closed) for group in groups.values() for rid in group.members}

    def state(self) -> dict[str, Any]:
        """Everything the window knows, as JSON values; ``restore`` of it behaves alike."""
        return {
            "open": [_group_to_json(key, group) for key, group in self._open.items()],
            "closed": [_group_to_json(key, group) for key, group in self._closed.items()],
            "late": [_to_json(event) for event in self._late],
            "settled": [[key, None if ids is None else sorted(ids)] for key, ids in self._settled.items()],
            "counts": dict(self.counts),
        }

    @classmethod
    def restore(cls, state: dict[str, Any], config: WindowConfig | None = None) -> GroupWindow:
        """The window that ``state`` was taken from."""
        window = cls(config)
        window._open.update(map(_group_from_json, state["open"]))
        window._closed.update(map(_group_from_json, state["closed"]))
        window._late = [_from_json(event) for event in state["late"]]
        window._settled.update((key, None if ids is None else set(ids)) for key, ids in state["settled"])
        window.counts = Counter(state["counts"])
        return window


def group_key(event: Event) -> str:
    """The group an event belongs to; a rollout without group_id is a group of its own."""
    group_id = event.get("group_id")
    return f"group:{group_id}" if group_id is not None else f"rollout:{event['rollout_id']}"


def rank(event: Event) -> tuple[int, int, str]:
    """Order of reports about one rollout: a later attempt, then a later revision, wins; the hash breaks ties."""
    return event["attempt_number"], event["revision"], event["content_hash"]


def _group_to_json(key: str, group: _Group) -> list[Any]:
    members = [_to_json(e) for e in group.members.values()]
    return [key, group.size, group.opened_at_us, group.reason, members, sorted(group.surplus)]


def _group_from_json(stored: list[Any]) -> tuple[str, _Group]:
    key, size, opened_at_us, reason, members, *surplus = stored  # earlier checkpoints have no surplus
    known = {e["rollout_id"]: e for e in map(_from_json, members)}
    return key, _Group(size, opened_at_us, known, reason, set(*surplus))


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    return [_to_json(item) for item in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"b64"}:
            return base64.b64decode(value["b64"])
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value
