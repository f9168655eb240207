"""The agent as a class, with the reference's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agl_stream.types import AttemptedRollout, NamedResources

_ASYNC_METHODS = ("rollout_async", "training_rollout_async", "validation_rollout_async")


class LitAgent:
    """Override ``rollout`` or ``rollout_async``; the training and validation variants where they differ.

    Every method takes ``(task, resources, rollout)`` and returns None, a number (the reward) or a list of spans.
    Mode ``train`` calls the training variant, every other mode the validation variant; each delegates to ``rollout``
    unless overridden. One instance serves many attempts at once: keep nothing of an attempt on ``self``. Sync methods
    run in threads, async ones on the runner's agent loop.
    """

    def is_async(self) -> bool:
        """Whether any async variant is overridden; then only async variants are called."""
        return any(getattr(type(self), name) is not getattr(LitAgent, name) for name in _ASYNC_METHODS)

    def method_for(self, mode: str | None) -> Callable[..., Any]:
        """The bound method that serves a rollout of this mode."""
        name = "training_rollout" if mode == "train" else "validation_rollout"
        return getattr(self, name + "_async" if self.is_async() else name)

    def rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    def training_rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return self.rollout(task, resources, rollout)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    async def training_rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return await self.rollout_async(task, resources, rollout)
