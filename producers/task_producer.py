"""Tasks in: requests for rollouts, acknowledged by the log before the call returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from agl_stream.errors import UsageError
from agl_stream.producers.claim_check import ClaimCheck
from agl_stream.producers.delivery import OnDelivery
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.task import TaskFields, request_of
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import derived, new_id
from agl_stream.settings import Settings

_TOPIC = "rollout-requests"


class TaskProducer:
    """Enqueues rollouts. Thread-safe.

    Idempotent where the caller gives ``rollout_id``: the same id again is the same request, so a call whose
    outcome is unknown may simply be repeated. Inputs above the inline limit go to the blob store. Every method
    raises TaskError naming the field, and what EventProducer raises.
    """

    def __init__(self, settings: Settings | None = None, *, producer: EventProducer | None = None) -> None:
        """Uses ``producer`` when given (and leaves it open), else makes its own."""
        self._settings = settings or Settings.load()
        self._owned = producer is None
        self._producer = producer or EventProducer(self._settings, name="tasks")
        self._claim_check = ClaimCheck(self._settings)

    @property
    def producer(self) -> EventProducer:
        return self._producer

    def enqueue(self, input: Any, **fields: Unpack[TaskFields]) -> str:
        """Request one rollout and return its id once acknowledged.

        What the fields mean and what they may be: ``task.request_of``.
        """
        return self.enqueue_many([{"input": input, **fields}])[0]

    def enqueue_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """Request one rollout for each mapping (``input`` and the fields of ``enqueue``); ids in the same order,
        once all are acknowledged. Nothing is sent unless all are valid."""
        events = [self._request(task) for task in tasks]
        self._producer.deliver(_TOPIC, ((event["rollout_id"], event) for event in events))
        return [event["rollout_id"] for event in events]

    def enqueue_group(self, input: Any, size: int, **fields: Unpack[TaskFields]) -> list[str]:
        """Request ``size`` siblings of one prompt, which share a group_id (made when not given).

        With ``rollout_id``, the siblings' ids are ``<rollout_id>-0``, ``-1``, ..., which makes the group idempotent.
        """
        return self.enqueue_many(siblings({"input": input, **fields}, size))

    async def aenqueue(self, input: Any, **fields: Unpack[TaskFields]) -> str:
        """As ``enqueue``, for event loops."""
        event = self._request({"input": input, **fields})
        await self._producer.adeliver(_TOPIC, event, key=event["rollout_id"])
        return event["rollout_id"]

    def send(self, task: Mapping[str, Any], on_delivery: OnDelivery | None = None) -> str:
        """Request without waiting for the acknowledgement; ``flush`` waits. For streams of many tasks."""
        event = self._request(task)
        self._producer.send(_TOPIC, event, key=event["rollout_id"], on_delivery=on_delivery)
        return event["rollout_id"]

    def control(self, rollout_id: str, action: str, *, reason: str | None = None) -> None:
        """Ask for a change of an existing rollout (``cancel``, ``requeue``, ``start_attempt``); returns once
        acknowledged, which is before it takes effect."""
        if action not in ("cancel", "requeue", "start_attempt"):
            raise UsageError(f"action: {action!r} is none of cancel, requeue, start_attempt")
        event: Event = {"rollout_id": rollout_id, "action": action, "reason": reason}
        self._producer.deliver("controls", [(rollout_id, event)])

    def flush(self) -> None:
        """Wait for everything sent; raises DeliveryFailed."""
        self._producer.flush()

    def close(self) -> None:
        """Flush, and close the producer if it is this object's own."""
        if self._owned:
            self._producer.close()
        else:
            self._producer.flush()

    def __enter__(self) -> TaskProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, task: Mapping[str, Any]) -> Event:
        event = request_of(**task)
        text = event["input"]
        # a character is at most four bytes: short texts need not be encoded to know
        if self._claim_check.too_large(len(text) * 4) and self._claim_check.too_large(len(data := text.encode())):
            event["input_ref"], event["input"] = self._claim_check.keep(data), "null"
        return event


def siblings(task: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """``size`` copies of a task with one group_id and, where the task has a rollout_id, an id of its own each."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"size: a group needs a whole number of siblings from 1, not {size!r}")
    given = task.get("rollout_id")
    group_id = task.get("group_id") or ("gr-" + (derived(16, "group", given) if given else new_id()[:16]))
    return [
        {
            **task,
            "group_id": group_id,
            "group_size": size,
            "rollout_id": None if given is None else f"{given}-{number}",
        }
        for number in range(size)
    ]
