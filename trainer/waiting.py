"""Saying what is awaited: a learner that waits does so aloud."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from agl_stream.trainer.window import GroupWindow

log = logging.getLogger(__name__)

_NAMED = 3


class WaitReport:
    """A log line every ``every_seconds`` for as long as something is waited for."""

    def __init__(self, what: str, every_seconds: float) -> None:
        self._what = what
        self._every_seconds = every_seconds
        self._started = self._reported = time.monotonic()

    def tick(self, describe: Callable[[], str]) -> None:
        """Call it in the waiting loop; ``describe`` is only called when a line is due."""
        now = time.monotonic()
        if now - self._reported >= self._every_seconds:
            self._reported = now
            log.warning("%s has waited %.0f s for %s", self._what, now - self._started, describe())


def describe_missing(missing: Sequence[str], total: int) -> str:
    """How many rollouts are missing, and some of their names."""
    named = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
    return f"{len(missing)} of {total} rollouts: {named} (agl-stream show ROLLOUT)"


def describe_window(window: GroupWindow, groups_wanted: int, asked: Collection[str]) -> str:
    """What keeps a step waiting: rollouts it asked for itself, or groups that others fill."""
    reported = window.reported()
    if missing := [rollout_id for rollout_id in asked if rollout_id not in reported]:
        return describe_missing(missing, len(asked))
    open_groups = window.missing()
    named = ", ".join(f"{key} {have}/{of}" for key, (have, of) in list(open_groups.items())[:_NAMED])
    return (
        f"{groups_wanted - window.ready} more groups ({window.ready} of {groups_wanted} closed, "
        f"{len(open_groups)} open{': ' + named if named else ''})"
    )
