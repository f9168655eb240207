"""Watches a running system from outside: reads `batches` and `triplets`, asks for offsets and lag."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from agl_stream import connections
from agl_stream.cli.log_reader import LogReader
from agl_stream.demo.progress import Progress, Rate
from agl_stream.demo.view import Snapshot
from agl_stream.errors import AglStreamError, DecodeError
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings

_ASK_EVERY_SECONDS = 2.0
_PATIENCE_SECONDS = 3.0


class Monitor:
    """Follows one run. A broker that is away for a while only makes it look later."""

    def __init__(self, settings: Settings, run_id: str, steps_wanted: int) -> None:
        self.progress = Progress(run_id)
        self._steps_wanted = steps_wanted
        # Not to freeze the view for long while a broker is being restarted.
        self._reader = LogReader(replace(settings, connect_timeout_seconds=_PATIENCE_SECONDS))
        self._codec = Codec(connections.registry_client(settings, register=False))
        self._reader.follow(
            {topic: {p: low for p, (low, _) in self._reader.bounds(topic).items()} for topic in ("batches", "triplets")}
        )
        self._rollout_rate, self._span_rate = Rate(), Rate()
        self._earlier_spans = self._spans_on_log()
        self._spans = 0
        self._lag: dict[str, int] = {}
        self._asked_at = 0.0

    def close(self) -> None:
        self._reader.__exit__(None, None, None)

    def look(self, seconds: float) -> None:
        """Take in what is new, for about `seconds`."""
        for record in self._reader.poll(seconds):
            try:
                event: Any = self._codec.decode(record.value, record.headers)[1]
            except DecodeError:
                continue
            if record.topic == "batches":
                self.progress.batch(event)
            else:
                self.progress.joined(event)
        self._rollout_rate.observe(time.monotonic(), len(self.progress.ended_rollouts))

    def spans(self) -> int:
        """Spans written since this monitor began to look."""
        self._spans = self._spans_on_log() - self._earlier_spans
        return self._spans

    def _spans_on_log(self) -> int:
        return sum(end for _, end in self._reader.bounds("spans").values())

    def snapshot(self, phase: str) -> Snapshot:
        return Snapshot(
            phase=phase,
            steps=len(self.progress.steps),
            steps_wanted=self._steps_wanted,
            rewards=self.progress.rewards(),
            tool_use=self.progress.tool_use,
            rollouts=len(self.progress.ended_rollouts),
            rollouts_per_second=self._rollout_rate.per_second,
            spans=self._spans,
            spans_per_second=self._span_rate.per_second,
            lag=self._lag,
        )

    def ask(self) -> None:
        """Ask for spans and lag, when the last time is a while ago."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_EVERY_SECONDS:
            return
        self._asked_at = now
        try:
            self._span_rate.observe(now, self.spans())
            lag = self._reader.group_lag(self._reader.groups())
        except AglStreamError:
            return
        self._lag = {group: sum(topics.values()) for group, topics in lag.items()}
