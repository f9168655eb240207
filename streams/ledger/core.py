"""The account of training rollouts: what became of every one that was requested. Pure.

Each rollout is in exactly one place. A batch manifest that says it was trained decides; then what the latest
manifest says of it (dropped, failed, cancelled); then the rollout's own terminal state; else it is in flight.
The sum therefore holds by construction; what can go wrong is listed beside it, and ``balanced`` is false then:

- ``trained_twice``: one learner trained on it in more than one step;
- ``unrequested``: a manifest settles it and no rollout of that id is known. Passing while a sink catches up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

UNSPECIFIED = "unspecified"
_LISTED = 100


class Settlement(NamedTuple):
    """What one manifest says of a rollout."""

    learner_id: str
    step: int
    outcome: str
    reason_code: str | None


class Place(NamedTuple):
    """Where a rollout stands in the account; ``reason`` for dropped and failed ones."""

    name: str
    reason: str | None = None


def place_of(status: str, reason_code: str | None, settlements: Iterable[Settlement]) -> Place:
    """The one place of a rollout in the account."""
    # learners count their steps apart: at the same step their names decide, so that the order of reading does not
    told = sorted(settlements, key=lambda settlement: (settlement.step, settlement.learner_id))
    if any(settlement.outcome == "trained" for settlement in told):
        return Place("trained")
    for settlement in reversed(told):
        if settlement.outcome == "cancelled":
            return Place("cancelled")
        if settlement.outcome in ("dropped", "failed"):
            return Place(settlement.outcome, settlement.reason_code or reason_code or UNSPECIFIED)
    if status == "failed":
        return Place("failed", reason_code or UNSPECIFIED)
    return Place("cancelled" if status == "cancelled" else "in_flight")


def trained_twice(settlements: Iterable[Settlement]) -> bool:
    """Whether one learner trained on the same rollout in more than one step."""
    steps: dict[str, int] = {}
    for settlement in settlements:
        if (
            settlement.outcome == "trained"
            and steps.setdefault(settlement.learner_id, settlement.step) != settlement.step
        ):
            return True
    return False


@dataclass
class _Account:
    requested: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    in_flight: int = 0
    twice: list[str] = field(default_factory=list)

    def add(self, rollout_id: str, place: Place, twice: bool) -> None:
        self.requested += 1
        if place.reason is not None:
            (self.dropped if place.name == "dropped" else self.failed)[place.reason] += 1
        else:
            setattr(self, place.name, getattr(self, place.name) + 1)
        if twice:
            self.twice.append(rollout_id)

    def as_dict(self) -> dict[str, Any]:
        settled = self.trained + self.dropped.total() + self.failed.total() + self.cancelled + self.in_flight
        return {
            "requested": self.requested,
            "trained": self.trained,
            "dropped": dict(sorted(self.dropped.items())),
            "failed": dict(sorted(self.failed.items())),
            "cancelled": self.cancelled,
            "in_flight": self.in_flight,
            "trained_twice": sorted(self.twice)[:_LISTED],
            "balanced": settled == self.requested and not self.twice,
        }


class Ledger:
    """Adds rollouts up. ``result`` gives a dict with requested, trained, dropped {reason: n}, failed {reason: n},
    cancelled, in_flight, trained_twice [ids, at most 100], unrequested [ids, at most 100], balanced, and the same
    per run (without unrequested) under ``runs``; a rollout without a run is counted under the empty name."""

    def __init__(self) -> None:
        self._total = _Account()
        self._runs: dict[str, _Account] = {}
        self._unrequested: list[str] = []

    def add(
        self,
        rollout_id: str,
        run_id: str | None,
        status: str,
        reason_code: str | None,
        settlements: Iterable[Settlement] = (),
    ) -> None:
        """One requested rollout with everything that manifests say of it."""
        told = list(settlements)
        place, twice = place_of(status, reason_code, told), trained_twice(told)
        self._total.add(rollout_id, place, twice)
        self._runs.setdefault(run_id or "", _Account()).add(rollout_id, place, twice)

    def add_unrequested(self, rollout_id: str) -> None:
        """A manifest settles a rollout that nobody requested."""
        self._unrequested.append(rollout_id)

    def result(self) -> dict[str, Any]:
        """The account so far."""
        total = self._total.as_dict()
        total["unrequested"] = sorted(self._unrequested)[:_LISTED]
        total["balanced"] = total["balanced"] and not self._unrequested
        total["runs"] = {run_id: account.as_dict() for run_id, account in sorted(self._runs.items())}
        return total
