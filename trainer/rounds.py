"""Rounds of a step: groups are collected until there is something to train.

A round whose groups hold nothing trainable (all failed, none with a reward, all too old) is no reason to stop, and
nothing to read again: what became of its rollouts is kept, other groups are collected for the same step, and the
step's manifest settles them all. It is kept in memory alone: the checkpoint's offsets lie before these groups, so
a learner that is killed reads and judges them again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from agl_stream.errors import AglStreamError
from agl_stream.schemas.reasons import REASONS
from agl_stream.trainer.batch import Batch
from agl_stream.trainer.window import ClosedGroup

log = logging.getLogger(__name__)

MAX_ROUNDS = 100
# one manifest names them all, and a record has a largest size
MAX_SETTLED = 20_000


class NothingToTrain(AglStreamError):
    """Round after round without a usable row; going on would only hide the fault."""


def gather(
    collect: Callable[[int], list[ClosedGroup]], judge: Callable[[list[ClosedGroup]], Batch], what: str
) -> tuple[Batch, list[ClosedGroup]]:
    """The first batch with rows, and the groups of all rounds; its outcomes are those of all rounds.

    ``collect`` is given the number of the round, from 0. Each round without a row is a warning with its reasons.
    Raises NothingToTrain after MAX_ROUNDS of them in a row, or when they hold MAX_SETTLED rollouts.
    """
    groups: list[ClosedGroup] = []
    outcomes: list[dict[str, Any]] = []
    for number in range(MAX_ROUNDS):
        new = collect(number)
        batch = judge(new)
        groups += new
        outcomes += batch.outcomes
        if batch.rows:
            return replace(batch, outcomes=outcomes), groups
        log.warning(
            "%s: none of the %d rollouts of %d groups can be trained (%s); they are settled with the step, which "
            "collects other groups (round %d of at most %d)",
            what,
            len(batch.outcomes),
            len(new),
            _counted(_reasons(batch.outcomes)),
            number + 1,
            MAX_ROUNDS,
        )
        if len(outcomes) >= MAX_SETTLED:
            break
    reasons = _reasons(outcomes)
    raise NothingToTrain(
        f"{what}: none of the {len(outcomes)} rollouts of {len(groups)} groups in a row can be trained "
        f"({_counted(reasons)}). {_remedies(reasons)}See agl-stream show {outcomes[0]['rollout_id']} for one of them; "
        "a learner that is to pass them over begins under another --learner-id with --from-latest"
    )


def _reasons(outcomes: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(outcome["reason_code"] or outcome["outcome"] for outcome in outcomes)


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())


def _remedies(reasons: Counter[str]) -> str:
    known = [REASONS[reason] for reason, _ in reasons.most_common() if reason in REASONS]
    return "".join(f"{reason.code}: {reason.remedy} " for reason in known)
