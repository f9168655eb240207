"""Rollouts that have ended and left the lifecycle's table: the state store remembers them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from agl_stream.errors import EngineUnreachable
from agl_stream.schemas.events import Event
from agl_stream.streams.lifecycle.state import TERMINAL

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRIES = 5


class RolloutReader(Protocol):
    """The part of the state store's port that is needed here."""

    def get_rollouts(self, rollout_ids: Iterable[str]) -> dict[str, Event]: ...


class EndedRollouts:
    """Answers from the state store. A rollout is forgotten by the table only once the store shows its end, so that
    every rollout is known to one of the two at all times, however far the sink lags; without a sink nothing is
    forgotten. The price is one indexed look-up for each new rollout_id."""

    def __init__(self, store: RolloutReader) -> None:
        self._store = store

    def among(self, rollout_ids: Iterable[str]) -> set[str]:
        """Those that the store shows as ended. Raises EngineUnreachable when it does not answer for seconds."""
        found = _persistently(lambda: self._store.get_rollouts(rollout_ids))
        return {rollout_id for rollout_id, event in found.items() if event["status"] in TERMINAL}

    def shown(self, versions: dict[str, int]) -> set[str]:
        """Those rollout_ids whose end the store shows, at the version given or a later one."""
        found = _persistently(lambda: self._store.get_rollouts(versions))
        return {
            rollout_id
            for rollout_id, event in found.items()
            if event["status"] in TERMINAL and event["version"] >= versions[rollout_id]
        }


def _persistently(ask: Callable[[], _T]) -> _T:
    for tries in range(_TRIES):
        try:
            return ask()
        except EngineUnreachable as error:
            if tries == _TRIES - 1:
                raise
            logger.warning("the state store does not answer (%s); trying again", error)
            time.sleep(0.2 * 2**tries)
    raise AssertionError("unreachable")
