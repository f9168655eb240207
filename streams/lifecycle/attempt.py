"""The facts known of one attempt, and how reports about it join.

Reports come more than once and in any order, so an attempt is no "last message wins": it is a join of facts, each
of which only grows by a fixed order of its own (a maximum or a minimum over (time of the event, event id)). Joining
the same reports in any order, any number of times, gives the same facts, and status is read off the facts:

- an *end* beats everything: ``succeeded`` before all others, since it brings a result; between ``failed`` and
  ``timeout`` the one that happened first, since the second is its consequence or too late;
- ``unresponsive`` is silence, not an end: activity that happened later revives the attempt, activity from before
  does not, whichever is read first;
- the holder is the claim of the newest delivery, and within one delivery the latest claim (an earlier claimer of
  the same delivery has dropped it).

Times are those of the events (``occurred_at_us``); nothing here reads a clock.
"""

from __future__ import annotations

from typing import Any, TypedDict

import orjson

from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import attempt_id

ENDED = frozenset({"succeeded", "failed", "timeout"})
STATUSES = frozenset({"preparing", "running", "unresponsive"}) | ENDED


class Ending(TypedDict):
    """A report of ``succeeded``, ``failed`` or ``timeout``, or of silence (``unresponsive``)."""

    status: str
    at_us: int
    event_id: str
    reason_code: str | None
    detail: str | None
    reward: float | None


class AttemptFacts(TypedDict):
    """The fields of AttemptState, read off the facts below them."""

    attempt_id: str
    attempt_number: int
    status: str
    delivery: int
    worker_id: str | None
    worker_instance: str | None
    dispatched_at_us: int
    started_at_us: int | None
    ended_at_us: int | None
    reward: float | None
    reason_code: str | None
    detail: str | None
    metadata: str
    # facts
    claim: list[Any] | None
    """[delivery, occurred_at_us, event_id] of the ``preparing`` that holds it."""
    running_at_us: int
    """Latest ``running``; 0: none."""
    first_at_us: int
    """Earliest report by whoever ran it; 0: none. Stands in for the start where no claim was reported."""
    silence: Ending | None
    end: Ending | None
    metadata_stamps: dict[str, list[Any]]
    dispatch_partition: int
    """Partition of the dispatch topic it was offered on; -1: not chosen yet. A repeated offer goes there again, to
    the runner that remembers the first."""


def new_attempt(rollout_id: str, number: int, dispatched_at_us: int) -> AttemptFacts:
    """An attempt that is offered for the first time."""
    return {
        "attempt_id": attempt_id(rollout_id, number),
        "attempt_number": number,
        "status": "preparing",
        "delivery": 1,
        "worker_id": None,
        "worker_instance": None,
        "dispatched_at_us": dispatched_at_us,
        "started_at_us": None,
        "ended_at_us": None,
        "reward": None,
        "reason_code": None,
        "detail": None,
        "metadata": "{}",
        "claim": None,
        "running_at_us": 0,
        "first_at_us": 0,
        "silence": None,
        "end": None,
        "metadata_stamps": {},
        "dispatch_partition": -1,
    }


def join(attempt: AttemptFacts, event: Event) -> AttemptFacts:
    """``attempt`` with an AttemptStatusChanged joined in; the very same object when it brought nothing new.

    ``event["status"]`` is one of STATUSES and ``event["metadata"]`` a JSON object.
    """
    status, at_us, source = event["status"], event["occurred_at_us"], event["event_id"]
    facts: dict[str, Any] = {}
    if status == "preparing":
        claim = [event["delivery"], at_us, source]
        if attempt["claim"] is None or claim > attempt["claim"]:
            facts["claim"] = claim
            facts["worker_id"] = event["worker_id"]
            facts["worker_instance"] = event["worker_instance"]
    elif status == "running":
        if at_us > attempt["running_at_us"]:
            facts["running_at_us"] = at_us
    else:
        ending: Ending = {
            "status": status,
            "at_us": at_us,
            "event_id": source,
            "reason_code": event["reason_code"],
            "detail": event["detail"],
            "reward": event["reward"],
        }
        if status == "unresponsive":
            if attempt["silence"] is None or _silence_key(ending) > _silence_key(attempt["silence"]):
                facts["silence"] = ending
        elif attempt["end"] is None or _end_key(ending) < _end_key(attempt["end"]):
            facts["end"] = ending
    # the watchdog speaks of silence and time limits: that is no sign of when an attempt began
    if status not in ("unresponsive", "timeout") and not 0 < attempt["first_at_us"] <= at_us:
        facts["first_at_us"] = at_us
    if event["delivery"] > attempt["delivery"]:
        facts["delivery"] = event["delivery"]
    if event["metadata"] not in ("{}", ""):
        stamps = _merge_metadata(attempt["metadata_stamps"], orjson.loads(event["metadata"]), at_us, source)
        if stamps is not None:
            facts["metadata_stamps"] = stamps
    if not facts:
        return attempt
    joined: AttemptFacts = {**attempt, **facts}  # type: ignore[typeddict-item]
    _read_off(joined)
    return joined


def without_reward(event: Event) -> Event:
    """An AttemptStatusChanged whose reward is no finite number, without it. A success is none then, as the runner
    sees it, too: such a reward would poison every mean it meets, and be null once it has been through JSON."""
    if event["status"] != "succeeded":
        return {**event, "reward": None}
    detail = f"the agent returned the reward {event['reward']}"
    return {**event, "status": "failed", "reason_code": "bad_reward", "detail": detail, "reward": None}


def offered_again(attempt: AttemptFacts, at_us: int) -> AttemptFacts:
    """The next delivery of the same attempt; its partition is chosen anew."""
    return {
        **attempt,
        "delivery": attempt["delivery"] + 1,
        "dispatched_at_us": at_us,
        "dispatch_partition": -1,
    }


def _read_off(attempt: AttemptFacts) -> None:
    """Fill the fields of AttemptState from the facts of a fresh dict."""
    claim, end, silence = attempt["claim"], attempt["end"], attempt["silence"]
    active_at_us = max(attempt["running_at_us"], claim[1] if claim else 0)
    if end is not None:
        said: Ending | None = end
    elif silence is not None and silence["at_us"] > active_at_us:
        said = silence
    else:
        said = None
    if said is not None:
        attempt["status"] = said["status"]
    else:
        attempt["status"] = "running" if attempt["running_at_us"] else "preparing"
    attempt["started_at_us"] = claim[1] if claim else (attempt["first_at_us"] or None)
    attempt["ended_at_us"] = end["at_us"] if end else None
    attempt["reward"] = end["reward"] if end else None
    attempt["reason_code"] = said["reason_code"] if said else None
    attempt["detail"] = said["detail"] if said else None
    stamps = attempt["metadata_stamps"]
    if stamps:
        attempt["metadata"] = orjson.dumps({key: stamps[key][2] for key in sorted(stamps)}).decode()


def _end_key(end: Ending) -> tuple[bool, int, str]:
    return end["status"] != "succeeded", end["at_us"], end["event_id"]


def _silence_key(silence: Ending) -> tuple[int, str]:
    return silence["at_us"], silence["event_id"]


def _merge_metadata(
    stamps: dict[str, list[Any]], given: dict[str, Any], at_us: int, source: str
) -> dict[str, list[Any]] | None:
    """Key by key, the latest value; None when nothing changes."""
    news = {
        key: [at_us, source, value]
        for key, value in given.items()
        if key not in stamps or [at_us, source] > stamps[key][:2]
    }
    return {**stamps, **news} if news else None
