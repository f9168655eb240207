"""Figures of a run; and that what is light stays light."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from trainer_makers import joined

from agl_stream.trainer.progress import FIRST_KEPT, LATEST_KEPT, add_to_totals, shortened, validation_record

LIGHT = ("window", "batch", "manifest", "curriculum", "config", "checkpoint", "publication", "served_check", "learner")


def test_totals_count_and_sum_and_keep_the_largest() -> None:
    totals: dict[str, Any] = {}
    for step, difference in enumerate((0.1, 0.3, 0.2), start=1):
        record = {
            "outcomes": {"trained": 7, "dropped": step, "reason:no_reward": step},
            "seconds": {"collect": 0.5, "train": 0.25},
            "max_logprob_diff": difference,
        }
        totals = add_to_totals(totals, record)
    assert totals["outcomes"] == {"trained": 21, "dropped": 6, "reason:no_reward": 6}
    assert totals["seconds"] == {"collect": 1.5, "train": 0.75}
    assert totals["largest"] == {"max_logprob_diff": 0.3}


def test_a_long_history_keeps_its_beginning_and_its_end() -> None:
    records = [{"step": step} for step in range(1, 10_001)]
    kept: list[dict[str, Any]] = []
    for record in records:
        kept = shortened([*kept, record])
    assert kept == records[:FIRST_KEPT] + records[-LATEST_KEPT:]
    assert shortened(records[:20]) == records[:20]


def test_validation_counts_what_has_no_reward_and_does_not_take_it_for_zero() -> None:
    events = [
        joined("a", reward=1.0),
        joined("b", reward=0.0),
        joined("c", reward=None),
        joined("d", reward=0.0, status="failed"),
    ]
    record = validation_record(4, events)
    assert (record["reward_mean"], record["rollouts"], record["with_reward"]) == (0.5, 4, 2)
    assert validation_record(4, events[2:])["reward_mean"] is None


def test_deciding_needs_no_torch() -> None:
    """Windows, batches and manifests are read by command lines and tests that must start at once."""
    names = ", ".join(f"agl_stream.trainer.{name}" for name in LIGHT)
    program = f"import sys, {names}; print([m for m in ('torch', 'verl', 'transformers', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
