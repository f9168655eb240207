"""Closed groups to a training batch: which rollouts are trained, with which weight, and what became of the rest.

A rollout of several model calls yields several rows (one a triplet), but it is one sample of the policy: its
advantage is computed once, from the rewards of its group, and its rows share one unit of weight in proportion to
their tokens. The loss is therefore the mean over rollouts of the mean over the rollout's tokens; a rollout with
many turns, or long ones, counts no more than any other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl_stream.schemas.tokens import unpack_floats, unpack_ids
from agl_stream.trainer.window import EVICTED, ClosedGroup, Event

TRAINED, DROPPED, FAILED, CANCELLED = "trained", "dropped", "failed", "cancelled"

# rewards of all rollouts, index of each one's group -> advantage of each
AdvantageFunction = Callable[[Sequence[float], Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class Row:
    """One model call as the trainer sees it.

    ``logprobs`` are those the server reported (None when it did not). ``version`` is the one that the server stamped
    on the response, else the one pinned on the rollout, else None: not known, and taken for the one being trained.
    ``weight`` multiplies the advantage under a mean over rows of the token mean, so that all rollouts weigh alike.
    """

    rollout_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float] | None
    version: int | None
    advantage: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True)
class BatchConfig:
    """Limits of a batch.

    ``max_staleness``: how many versions older than the one being trained a response may be (None: any). One whose
    version is not known, see ``Row``, is never too old.
    ``min_siblings``: a group of more than one with fewer usable members has no baseline and is dropped.
    """

    max_prompt_tokens: int = 4096
    max_response_tokens: int = 4096
    max_staleness: int | None = None
    min_siblings: int = 2


@dataclass
class Batch:
    """Rows to train and the outcome of every rollout the step settles (BatchTrained.rollouts)."""

    rows: list[Row]
    outcomes: list[dict[str, Any]]
    adapter: str = ""
    rewards: list[float] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Outcomes, and the reasons of those that were not trained."""
        counts: Counter[str] = Counter(outcome["outcome"] for outcome in self.outcomes)
        counts.update(f"reason:{o['reason_code']}" for o in self.outcomes if o["reason_code"])
        return counts


def build_batch(
    groups: Sequence[ClosedGroup],
    late: Sequence[Event],
    advantages: AdvantageFunction,
    config: BatchConfig,
    *,
    version_in: int,
) -> Batch:
    """The batch of ``groups``; ``late`` siblings are settled as dropped.

    Only succeeded rollouts with a finite reward are trained, and only their rewards make the baseline: a failure of
    machinery is never a reward of zero. Without any of them the batch has outcomes and no rows.
    """
    outcomes: list[dict[str, Any]] = []
    usable: list[tuple[Event, list[Row]]] = []
    group_of: list[int] = []
    for number, group in enumerate(groups):
        judged = [(event, *_judge(event, config, version_in)) for event in group.members]
        good = [(event, rows) for event, reason, rows in judged if reason is None]
        refused = _refuse_group(group, len(good), config)
        for event, reason, rows in judged:
            reason = reason or refused
            outcomes.append(_outcome(event, reason, 0 if reason else len(rows)))
        if refused is None:
            usable += good
            group_of += [number] * len(good)
    outcomes += [_outcome(event, "late_triplets", 0) for event in late]
    if not usable:
        return Batch([], outcomes)
    rewards = [float(event["reward"]) for event, _ in usable]
    weighted = _weigh([rows for _, rows in usable], advantages(rewards, group_of))
    adapter = f"{usable[0][0]['adapter']}@{usable[0][0]['adapter_version']}"
    return Batch(weighted, outcomes, adapter, rewards)


def _judge(event: Event, config: BatchConfig, version_in: int) -> tuple[str | None, list[Row]]:
    """(None, rows) for a rollout that can be trained, else (reason, [])."""
    if event["status"] != "succeeded":
        return event["reason_code"] or event["status"], []
    if event["reward"] is None:
        return "no_reward", []
    if not math.isfinite(event["reward"]):
        return "bad_reward", []
    if event["reason_code"] is not None:
        return event["reason_code"], []
    if not event["triplets"]:
        return "no_model_calls", []
    rows: list[Row] = []
    for triplet in event["triplets"]:
        reason, row = _row(event, triplet, config, version_in)
        if row is None:
            return reason, []
        rows.append(row)
    return None, rows


def _row(event: Event, triplet: Event, config: BatchConfig, version_in: int) -> tuple[str | None, Row | None]:
    try:
        prompt = unpack_ids(triplet["prompt_token_ids"])
        response = unpack_ids(triplet["response_token_ids"])
        packed = triplet["response_logprobs"]
        logprobs = None if packed is None else unpack_floats(packed)
    except ValueError:
        return "bad_tokens", None
    version = triplet["resources_version"]
    if version is None:
        version = event["resources_version"]
    if not prompt or not response or (logprobs is not None and len(logprobs) != len(response)):
        return "bad_tokens", None
    if logprobs is not None and not all(map(math.isfinite, logprobs)):
        return "nan_logprob", None
    if len(prompt) > config.max_prompt_tokens or len(response) > config.max_response_tokens:
        return "over_long", None
    if version is not None and version != version_in:
        if config.max_staleness is not None and version_in - version > config.max_staleness:
            return "stale", None
        if logprobs is None:
            return "logprobs_missing", None
    return None, Row(event["rollout_id"], prompt, response, logprobs, version)


def _refuse_group(group: ClosedGroup, usable: int, config: BatchConfig) -> str | None:
    if group.reason == EVICTED:
        return "group_incomplete"
    return "group_incomplete" if group.size > 1 and usable < config.min_siblings else None


def _weigh(rollouts: list[list[Row]], advantages: Sequence[float]) -> list[Row]:
    """Spreads each rollout's advantage over its rows, weighted so that the rollout counts as one."""
    rows_total = sum(map(len, rollouts))
    weighted: list[Row] = []
    for rows, advantage in zip(rollouts, advantages, strict=True):
        tokens = sum(len(row.response_ids) for row in rows)
        for row in rows:
            weight = len(row.response_ids) / tokens * rows_total / len(rollouts)
            weighted.append(
                Row(
                    row.rollout_id,
                    row.prompt_ids,
                    row.response_ids,
                    row.logprobs,
                    row.version,
                    float(advantage),
                    weight,
                )
            )
    return weighted


def _outcome(event: Event, reason: str | None, rows: int) -> dict[str, Any]:
    ended = {"failed": FAILED, "cancelled": CANCELLED}.get(event["status"], DROPPED)
    return {
        "rollout_id": event["rollout_id"],
        "attempt_id": event["attempt_id"],
        "revision": event["revision"],
        "group_id": event["group_id"],
        "content_hash": event["content_hash"],
        "outcome": TRAINED if reason is None else ended,
        "reason_code": reason,
        "reward": event["reward"],
        "rows": rows,
    }
