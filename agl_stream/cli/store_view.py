"""The view that asks the state store of the running system: constant time where the log view reads topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_stream.cli.views import OPEN_STATUSES

if TYPE_CHECKING:
    from agl_stream.streams.store.port import StateReader

_RESOURCES_LOOKED_AT = 1000


class StoreView:
    """A `SystemView` over the state store's port."""

    def __init__(self, store: StateReader) -> None:
        self.source = "state store"
        self._store = store

    def rollouts_by_status(self) -> dict[str, int]:
        return self._store.count_rollouts_by_status()

    def open_rollouts(self, limit: int) -> list[dict[str, Any]]:
        from agl_stream.streams.store.port import Condition, Query

        is_open = Condition("status", within=OPEN_STATUSES)
        return list(self._store.query_rollouts(Query(must=(is_open,), limit=limit)))

    def rejects_by_reason(self) -> dict[str, int]:
        return self._store.rejects_by_reason()

    def workers(self) -> list[dict[str, Any]]:
        return sorted(self._store.workers(), key=lambda worker: (worker["role"], worker["worker_id"]))

    def resources(self) -> list[dict[str, Any]]:
        from agl_stream.streams.store.port import Query

        recent = Query(sort_by="occurred_at_us", sort_order="desc", limit=_RESOURCES_LOOKED_AT)
        newest: dict[str, dict[str, Any]] = {}
        for published in self._store.query_resources(recent):
            known = newest.get(published["resources_id"])
            if known is None or known["version"] < published["version"]:
                newest[published["resources_id"]] = published
        return sorted(newest.values(), key=lambda published: published["resources_id"])

    def account(self) -> dict[str, Any]:
        return self._store.account()

    def rollout(self, rollout_id: str) -> dict[str, Any] | None:
        return self._store.get_rollout(rollout_id)

    def spans(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        return self._store.get_spans(rollout["rollout_id"])

    def triplets(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        joined = self._store.get_triplets(rollout["rollout_id"])
        return [joined] if joined else []

    def trainings(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        from agl_stream.cli.views import settlements

        return settlements(self._store.batches(), rollout["rollout_id"])
