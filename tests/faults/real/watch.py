"""What the log shows of a load from outside: which rollouts have ended, and what became of each in training."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from agl_stream import connections
from agl_stream.cli.log_reader import LogReader, RawRecord
from agl_stream.errors import AglStreamError, DecodeError
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings

ENDED = ("succeeded", "failed", "cancelled")
TOPICS = ("rollouts", "triplets", "batches")


class Watch:
    """Follows ``rollouts``, ``triplets`` and ``batches`` on a thread of its own, over every outage.

    Everything is kept: a test's thousand rollouts are small.
    """

    def __init__(self, settings: Settings) -> None:
        self.ended: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.attempts: dict[str, list[str]] = {}
        """Rollout -> how each of its attempts ended: status and reason."""
        self.manifests: dict[int, dict[str, Any]] = {}
        self.conflicts: list[str] = []
        self.outcomes: dict[str, list[tuple[int, str]]] = {}
        self._hashes: dict[tuple[str, int], str] = {}
        self._finished_at: list[float] = []
        self._trained_at: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._codec = Codec(connections.registry_client(settings))
        self._reader = LogReader(replace(settings, connect_timeout_seconds=30.0))
        self._reader.follow({topic: {p: low for p, (low, _) in self._reader.bounds(topic).items()} for topic in TOPICS})
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def settled(self) -> set[str]:
        """Rollouts that a manifest has settled."""
        with self._lock:
            return set(self.outcomes)

    def finished(self) -> int:
        """Rollouts that have ended so far."""
        with self._lock:
            return len(self.ended)

    def steps(self) -> int:
        with self._lock:
            return len(self.manifests)

    def trained_twice(self) -> list[str]:
        with self._lock:
            return [rid for rid, told in self.outcomes.items() if sum(what == "trained" for _, what in told) > 1]

    def reasons(self) -> Counter[str]:
        with self._lock:
            return Counter(what for told in self.outcomes.values() for _, what in told)

    def worst_pause(self, since: float) -> tuple[float, float]:
        """Longest time without an ended rollout, and without a trained step, from ``since`` (monotonic) until now."""
        with self._lock:
            return _longest_gap(self._finished_at, since), _longest_gap(self._trained_at, since)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                records = self._reader.poll(0.2)
            except AglStreamError:
                continue
            for record in records:
                try:
                    event: Any = self._codec.decode(record.value, record.headers)[1]
                except DecodeError:
                    continue
                with self._lock:
                    self._take(record, event)
        self._reader.__exit__(None, None, None)

    def _take(self, record: RawRecord, event: dict[str, Any]) -> None:
        now = time.monotonic()
        if record.topic == "rollouts":
            rollout_id = event["rollout_id"]
            if event["status"] in ENDED:
                earlier = self.ended.setdefault(rollout_id, event["status"])
                if earlier != event["status"]:
                    self.conflicts.append(f"{rollout_id} ended as {earlier} and as {event['status']}")
                elif rollout_id not in self.failures and event["status"] != "succeeded":
                    self.failures[rollout_id] = str(event["reason_code"])
                self.attempts[rollout_id] = [
                    f"{a['status']} {a['reason_code'] or ''}".strip() for a in event["attempts"]
                ]
                self._finished_at.append(now)
        elif record.topic == "triplets":
            place = (event["rollout_id"], event["revision"])
            if self._hashes.setdefault(place, event["content_hash"]) != event["content_hash"]:
                self.conflicts.append(f"revision {place[1]} of {place[0]} was told twice with different contents")
        else:
            known = self.manifests.setdefault(event["step"], event)
            if known is not event:
                if known["manifest_hash"] != event["manifest_hash"]:
                    self.conflicts.append(f"step {event['step']} was trained twice with different data")
                return
            self._trained_at.append(now)
            for settled in event["rollouts"]:
                self.outcomes.setdefault(settled["rollout_id"], []).append((event["step"], settled["outcome"]))


def _longest_gap(moments: list[float], since: float) -> float:
    marks = [since, *(moment for moment in moments if moment > since), time.monotonic()]
    return max(later - earlier for earlier, later in itertools.pairwise(marks))
