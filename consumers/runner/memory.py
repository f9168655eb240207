"""What a runner remembers about attempts it has met, within bounds."""

from __future__ import annotations

from collections import OrderedDict

_LIMIT = 100_000
_BEYOND_ALL = 1 << 62


class DeliveryMemory:
    """The highest delivery met per attempt, for the most recent attempts only.

    An attempt is offered again when nobody was seen to claim it; both offers may reach one runner, in any order.
    Only an offer newer than every one met before is worth claiming, and none is once the attempt has ended here.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()
        self._limit = limit

    def is_stale(self, attempt_id: str, delivery: int) -> bool:
        return delivery <= self._highest.get(attempt_id, 0)

    def finish(self, attempt_id: str) -> None:
        """The attempt has ended here: every offer of it is stale from now on."""
        self.remember(attempt_id, _BEYOND_ALL)

    def remember(self, attempt_id: str, delivery: int) -> None:
        self._highest[attempt_id] = max(delivery, self._highest.get(attempt_id, 0))
        self._highest.move_to_end(attempt_id)
        while len(self._highest) > self._limit:
            self._highest.popitem(last=False)


class CancelledRollouts:
    """Rollouts that were cancelled and not asked for again since, the most recent ones only.

    A cancelled rollout's dispatch may still wait in the log when its cancel is read.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._limit = limit

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._ids

    def take_note(self, rollout_id: str, action: str) -> None:
        """Follow a ControlRequested ``action``."""
        if action == "cancel":
            self._ids[rollout_id] = None
            self._ids.move_to_end(rollout_id)
            while len(self._ids) > self._limit:
                self._ids.popitem(last=False)
        elif action in ("requeue", "start_attempt"):
            self._ids.pop(rollout_id, None)
