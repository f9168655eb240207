"""Task files: one JSON value a line, enqueued as it is read; a bad line is reported and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from agl_stream.errors import EncodeError, RecordTooLarge
from agl_stream.producers import json_text
from agl_stream.producers.task import TaskError, task_of_line
from agl_stream.producers.task_producer import TaskProducer, siblings

_UTF8_BOM = b"\xef\xbb\xbf"
_IDS_KEPT = 100_000


@dataclass
class Outcome:
    """What became of a file. ``rollout_ids`` is None when there are more than anybody wants to read."""

    produced: int = 0
    rejected: int = 0
    rollout_ids: list[str] | None = field(default_factory=list)


class TaskFile:
    """Enqueues the lines of a stream.

    ``on_reject(line number, reason)`` hears of each line that was not enqueued; ``defaults`` holds fields for tasks
    that do not say them; with ``group_size`` each line becomes a group. ``raw``: every line is the input itself.
    """

    def __init__(
        self,
        tasks: TaskProducer,
        *,
        on_reject: Callable[[int, str], None],
        defaults: dict[str, Any] | None = None,
        group_size: int | None = None,
        raw: bool = False,
        max_line_bytes: int,
    ) -> None:
        self._tasks = tasks
        self._on_reject = on_reject
        self._defaults = {key: value for key, value in (defaults or {}).items() if value is not None}
        self._group_size = group_size
        self._raw = raw
        self._max_line_bytes = max_line_bytes
        # (line, reason) of rollouts the log refused, appended by the producer's thread
        self._undelivered: list[tuple[int, str]] = []

    def run(self, stream: IO[bytes], advance: Callable[[int], object] = lambda _: None) -> Outcome:
        """Read to the end and wait for the acknowledgements. ``advance(bytes)`` is called after each line.

        Raises what EventProducer raises when the log cannot be reached at all.
        """
        outcome = Outcome()
        for number, line in self._lines(stream):
            try:
                requests = self._requests(line)
                ids = [self._send(number, request) for request in requests]
            except (json_text.BadJson, TaskError, EncodeError, RecordTooLarge) as error:
                self._reject(outcome, number, str(error))
            else:
                outcome.produced += len(ids)
                if outcome.rollout_ids is not None:
                    outcome.rollout_ids.extend(ids)
                    if len(outcome.rollout_ids) > _IDS_KEPT:
                        outcome.rollout_ids = None
            advance(len(line))
        self._tasks.producer.settle()
        for number, reason in self._undelivered:
            outcome.produced -= 1
            self._reject(outcome, number, reason)
        return outcome

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line); of a line beyond the limit only the first bytes, which makes it a reject."""
        number = 0
        while line := stream.readline(self._max_line_bytes + 1):
            number += 1
            rest = line
            while len(rest) > self._max_line_bytes and not rest.endswith(b"\n"):
                rest = stream.readline(self._max_line_bytes + 1)
            if number == 1:
                line = line.removeprefix(_UTF8_BOM)
            if line.strip():
                yield number, line

    def _requests(self, line: bytes) -> list[dict[str, Any]]:
        if len(line.rstrip(b"\r\n")) > self._max_line_bytes:
            raise TaskError(f"input: the line is longer than AGL_STREAM_MAX_TASK_BYTES={self._max_line_bytes:,}")
        value = json_text.loads(line)
        task = {**self._defaults, **({"input": value} if self._raw else task_of_line(value))}
        return [task] if self._group_size is None else siblings(task, self._group_size)

    def _send(self, number: int, request: dict[str, Any]) -> str:
        def on_delivery(error: Any, _: Any) -> None:
            if error is not None:
                self._undelivered.append((number, error.str()))

        return self._tasks.send(request, on_delivery)

    def _reject(self, outcome: Outcome, number: int, reason: str) -> None:
        outcome.rejected += 1
        self._on_reject(number, reason)
