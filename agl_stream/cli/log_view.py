"""The view that folds the log itself: works wherever a broker and a registry can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agl_stream import connections
from agl_stream.cli.log_reader import LogReader, RawRecord
from agl_stream.cli.views import OPEN_STATUSES, settlements
from agl_stream.errors import DecodeError
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.settings import Settings

_CLOCK_SLACK_MS = 60_000
"""Spans may carry timestamps a little before the rollout's own, from hosts whose clocks differ."""


class LogView:
    """A `SystemView` over the topics, read anew with each call but for the rollouts, which are folded once.

    Records that do not decode are left out here; `rejects_by_reason` counts what consumers made of them.
    """

    def __init__(self, settings: Settings, reader: LogReader) -> None:
        self.source = "log"
        self._reader = reader
        self._codec = Codec(connections.registry_client(settings, register=False))
        self._statuses: dict[str, str] | None = None
        self._open: dict[str, dict[str, Any]] = {}

    def rollouts_by_status(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for status in self._fold_rollouts().values():
            counts[status] = counts.get(status, 0) + 1
        return counts

    def open_rollouts(self, limit: int) -> list[dict[str, Any]]:
        self._fold_rollouts()
        return sorted(self._open.values(), key=lambda rollout: rollout["requested_at_us"])[:limit]

    def rejects_by_reason(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, reject in self._events("rejects"):
            counts[reject["reason_code"]] = counts.get(reject["reason_code"], 0) + 1
        return counts

    def workers(self) -> list[dict[str, Any]]:
        newest: dict[str, dict[str, Any]] = {}
        for _, heartbeat in self._events("workers"):
            newest[heartbeat["worker_id"]] = heartbeat
        return sorted(newest.values(), key=lambda worker: (worker["role"], worker["worker_id"]))

    def resources(self) -> list[dict[str, Any]]:
        newest: dict[str, dict[str, Any]] = {}
        for _, published in self._events("resources"):
            known = newest.get(published["resources_id"])
            if known is None or known["version"] < published["version"]:
                newest[published["resources_id"]] = published
        return sorted(newest.values(), key=lambda published: published["resources_id"])

    def account(self) -> None:
        """A run of months is too much to read for one look."""
        return None

    def rollout(self, rollout_id: str) -> dict[str, Any] | None:
        newest: dict[str, Any] | None = None
        for _, state in self._events_with_key("rollouts", rollout_id):
            if state["rollout_id"] == rollout_id and (newest is None or state["version"] > newest["version"]):
                newest = state
        return newest

    def spans(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        # All partitions: a foreign producer may have used another partitioner, or no key at all.
        start = self._reader.offsets_at("spans", rollout["requested_at_us"] // 1000 - _CLOCK_SLACK_MS)
        own_key = rollout["rollout_id"].encode()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self._reader.read_to_end("spans", start=start):
            if record.key is not None and record.key != own_key:
                continue
            for _, span in self._decoded(record):
                if span["rollout_id"] == rollout["rollout_id"]:
                    found[span["attempt_id"], span["span_id"]] = span
        return sorted(found.values(), key=lambda span: (span["sequence_id"], span["started_at_us"]))

    def triplets(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for _, joined in self._events_with_key("triplets", rollout["group_id"] or rollout["rollout_id"]):
            if joined["rollout_id"] == rollout["rollout_id"]:
                found[joined["attempt_id"], joined["revision"]] = joined
        return sorted(found.values(), key=lambda joined: (joined["attempt_number"], joined["revision"]))

    def trainings(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        return settlements((batch for _, batch in self._events("batches")), rollout["rollout_id"])

    def _fold_rollouts(self) -> dict[str, str]:
        """Rollout -> status, by the greatest version; only open rollouts are kept whole."""
        if self._statuses is None:
            versions: dict[str, int] = {}
            self._statuses = {}
            for _, state in self._events("rollouts"):
                rollout_id = state["rollout_id"]
                if state["version"] < versions.get(rollout_id, -1):
                    continue
                versions[rollout_id] = state["version"]
                self._statuses[rollout_id] = state["status"]
                if state["status"] in OPEN_STATUSES:
                    self._open[rollout_id] = state
                else:
                    self._open.pop(rollout_id, None)
        return self._statuses

    def _events(self, topic: str) -> Iterator[tuple[RawRecord, dict[str, Any]]]:
        if self._reader.has(topic):
            for record in self._reader.read_to_end(topic):
                yield from self._decoded(record)

    def _events_with_key(self, topic: str, key: str) -> Iterator[tuple[RawRecord, dict[str, Any]]]:
        """Events of a topic that only our own producers write, so that the key tells the partition."""
        if self._reader.has(topic):
            home = murmur2_partition(key.encode(), len(self._reader.partitions(topic)))
            for record in self._reader.read_to_end(topic, partitions=[home]):
                if record.key == key.encode():
                    yield from self._decoded(record)

    def _decoded(self, record: RawRecord) -> Iterator[tuple[RawRecord, dict[str, Any]]]:
        if record.value is None:
            return
        try:
            yield record, self._codec.decode(record.value, record.headers)[1]
        except DecodeError:
            return
