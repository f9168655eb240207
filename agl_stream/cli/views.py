"""What `status` and `show` need to know, whoever answers: the state store or the log itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

OPEN_STATUSES = ("queuing", "requeuing", "preparing", "running")
WAITING_STATUSES = ("queuing", "requeuing")


class SystemView(Protocol):
    """Answers about one namespace. Events and rows are dicts with the fields of the .avsc files."""

    source: str
    """Where the answers come from, in words."""

    def rollouts_by_status(self) -> dict[str, int]:
        """Status -> number of rollouts."""
        ...

    def open_rollouts(self, limit: int) -> list[dict[str, Any]]:
        """Rollouts that have not ended, oldest first, at most `limit`."""
        ...

    def rejects_by_reason(self) -> dict[str, int]:
        """Reason code -> number of rejected records."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """The newest heartbeat of each worker."""
        ...

    def resources(self) -> list[dict[str, Any]]:
        """The newest version of each set of resources."""
        ...

    def rollout(self, rollout_id: str) -> dict[str, Any] | None:
        """The newest state of a rollout; None when nobody knows it."""
        ...

    def spans(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        """Spans of all attempts of a rollout, each once, by sequence_id."""
        ...

    def triplets(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        """What was joined of a rollout, by revision; a store keeps the newest revision only."""
        ...

    def trainings(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        """The training steps that settled a rollout: learner_id, step, version_in, version_out, and its BatchRollout
        fields (outcome, reason_code, reward, rows)."""
        ...

    def account(self) -> dict[str, Any] | None:
        """What became of every training rollout (`streams.ledger.core.Ledger`); None when only a state store knows."""
        ...


def settlements(batches: Iterable[dict[str, Any]], rollout_id: str) -> list[dict[str, Any]]:
    """What `SystemView.trainings` answers, from manifests; a repeated manifest counts once."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for batch in batches:
        about = {name: batch[name] for name in ("learner_id", "step", "version_in", "version_out")}
        for settled in batch["rollouts"]:
            if settled["rollout_id"] == rollout_id:
                found[batch["learner_id"], batch["step"]] = {**about, "at_us": batch["ended_at_us"], **settled}
    return [found[key] for key in sorted(found)]
