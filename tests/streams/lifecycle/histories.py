"""Builders and strategies for the input events of one rollout."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from agl_stream.schemas.ids import attempt_id
from agl_stream.streams.lifecycle.effects import Effect, Source
from agl_stream.streams.lifecycle.fold import fold
from agl_stream.streams.lifecycle.resources import ResourceView
from agl_stream.streams.lifecycle.state import RolloutState, announcement

ROLLOUT = "ro-0123456789abcdef"
TOPIC_OF = {
    "RolloutRequested": "rollout-requests",
    "ControlRequested": "controls",
    "AttemptStatusChanged": "attempts",
}
SECOND = 1_000_000
PRODUCER = {"name": "test", "instance": "1", "version": "0"}


class Given(NamedTuple):
    """An input event, without its place on the log."""

    event_type: str
    event: dict[str, Any]

    @property
    def topic(self) -> str:
        return TOPIC_OF[self.event_type]


def requested(event_id: str = "request", at: int = 0, rollout_id: str = ROLLOUT, **fields: Any) -> Given:
    config = {
        "timeout_seconds": None,
        "unresponsive_seconds": None,
        "max_attempts": 1,
        "retry_condition": [],
        "backoff_seconds": 0.0,
        **fields.pop("config", {}),
    }
    event = {
        "event_id": event_id,
        "occurred_at_us": at * SECOND + 1,
        "producer": PRODUCER,
        "rollout_id": rollout_id,
        "input": '{"question": "6 * 7"}',
        "input_ref": None,
        "mode": "train",
        "resources_id": None,
        "resources_version": None,
        "config": config,
        "metadata": "{}",
        "run_id": "run",
        "group_id": "group",
        "group_size": 8,
        **fields,
    }
    return Given("RolloutRequested", event)


def reported(status: str, number: int = 1, at: int = 1, rollout_id: str = ROLLOUT, **fields: Any) -> Given:
    event = {
        "event_id": f"{status}-{number}-{at}-{fields.get('worker_id', '')}",
        "occurred_at_us": at * SECOND,
        "producer": PRODUCER,
        "rollout_id": rollout_id,
        "attempt_id": attempt_id(rollout_id, number),
        "attempt_number": number,
        "delivery": 1,
        "status": status,
        "worker_id": None,
        "worker_instance": None,
        "reason_code": None,
        "detail": None,
        "reward": None,
        "metadata": "{}",
        **fields,
    }
    return Given("AttemptStatusChanged", event)


def control(action: str, at: int = 1, rollout_id: str = ROLLOUT, **fields: Any) -> Given:
    event = {
        "event_id": f"{action}-{at}",
        "occurred_at_us": at * SECOND,
        "producer": PRODUCER,
        "rollout_id": rollout_id,
        "action": action,
        "attempt_id": None,
        "reason": None,
        "payload": "{}",
        **fields,
    }
    return Given("ControlRequested", event)


def run(
    history: list[Given],
    *,
    resources: ResourceView | None = None,
    state: RolloutState | None = None,
    first_offset: int = 0,
) -> tuple[RolloutState | None, list[list[Effect]]]:
    """Fold a history; the effects of each event apart."""
    effects = []
    for offset, given in enumerate(history, first_offset):
        source = Source(given.topic, 0, offset)
        state, made = fold(state, given.event_type, given.event, source=source, resources=resources or ResourceView())
        effects.append(made)
    return state, effects


def outcome(state: RolloutState | None, *, without: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """What others can see of a state, apart from how many steps led to it."""
    if state is None or state["request"] is None:
        return None
    seen = announcement(state)
    for name in ("version", "event_id", "occurred_at_us", *without):
        seen.pop(name, None)
    for attempt in seen["attempts"]:
        for name in without:
            attempt.pop(name, None)
    return seen


configs = st.fixed_dictionaries(
    {
        "max_attempts": st.integers(1, 3),
        "retry_condition": st.sampled_from(
            [[], ["timeout"], ["unresponsive"], ["failed", "timeout"], ["failed", "timeout", "unresponsive"]]
        ),
        "backoff_seconds": st.sampled_from([0.0, 5.0]),
    }
)

_times = st.integers(1, 12)
_numbers = st.integers(1, 3)


@st.composite
def reports(draw: st.DrawFn, numbers: st.SearchStrategy[int] = _numbers) -> Given:
    """One report about an attempt, by a runner, the sink or the watchdog."""
    status = draw(
        st.sampled_from(["preparing", "running", "running", "succeeded", "failed", "timeout", "unresponsive"])
    )
    number, at = draw(numbers), draw(_times)
    fields: dict[str, Any] = {}
    if status == "preparing":
        fields["worker_id"] = draw(st.sampled_from(["w1", "w2"]))
        fields["worker_instance"] = fields["worker_id"] + "-a"
        fields["delivery"] = draw(st.integers(1, 2))
    elif status == "succeeded":
        fields["reward"] = draw(st.sampled_from([None, 0.0, 1.0]))
    elif status == "failed":
        fields["reason_code"] = draw(st.sampled_from(["agent_error", "agent_error", "cancelled"]))
        fields["detail"] = draw(st.sampled_from(["ValueError: no", "TypeError: no"]))
    if draw(st.booleans()):
        fields["metadata"] = draw(st.sampled_from(['{"a": 1}', '{"a": 2, "b": 3}']))
    given = reported(status, number, at, **fields)
    given.event["event_id"] += f"-{draw(st.integers(0, 2))}"
    return given


@st.composite
def controls(draw: st.DrawFn) -> Given:
    action = draw(st.sampled_from(["cancel", "requeue", "start_attempt", "update"]))
    at = draw(_times)
    fields: dict[str, Any] = {}
    if action == "update":
        fields["payload"] = draw(
            st.sampled_from(
                [
                    '{"metadata": {"note": 1}}',
                    '{"config": {"max_attempts": 3, "retry_condition": ["timeout"]}}',
                    '{"config": {"backoff_seconds": 3}}',
                    '{"status": "cancelled"}',
                    '{"status": "requeuing"}',
                ]
            )
        )
    elif draw(st.booleans()):
        fields["attempt_id"] = attempt_id(ROLLOUT, draw(st.integers(1, 2)))
        if action == "start_attempt":
            fields["payload"] = draw(st.sampled_from(["{}", '{"delivery": 1}', '{"delivery": 2}']))
    given = control(action, at, **fields)
    given.event["event_id"] += f"-{draw(st.integers(0, 2))}"
    return given


def unique(history: list[Given]) -> list[Given]:
    """One event per event_id: two writers never share one."""
    seen: dict[str, Given] = {}
    for given in history:
        seen.setdefault(given.event["event_id"], given)
    return list(seen.values())
