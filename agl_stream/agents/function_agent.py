"""A function as an agent: resources are injected by parameter name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from agl_stream.agents.lit_agent import LitAgent
from agl_stream.agents.signature import is_coroutine_callable, wanted_names
from agl_stream.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM

logger = logging.getLogger(__name__)
_R = TypeVar("_R", LLM, PromptTemplate)


class FunctionAgent(LitAgent):
    """Wraps ``function``, sync or async; the object itself stays callable exactly like the function.

    ``strip_proxy``: an injected ProxyLLM becomes a plain LLM bound to the rollout and attempt, so that ordinary
    OpenAI client code works unchanged.
    """

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool = True) -> None:
        self._function = function
        self._wanted = wanted_names(function)
        self._is_async = is_coroutine_callable(function)
        self._strip_proxy = strip_proxy
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the function asks for beside the task."""
        return self._wanted

    def is_async(self) -> bool:
        return self._is_async

    def rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        if self._is_async:
            raise RuntimeError(f"{self._name} is async: call rollout_async")
        return self._function(task, **self._injected(resources, rollout))

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        if not self._is_async:
            raise RuntimeError(f"{self._name} is not async: call rollout")
        return await self._function(task, **self._injected(resources, rollout))

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def _injected(self, resources: NamedResources, rollout: AttemptedRollout) -> dict[str, Any]:
        """Raises ValueError when no resource of a wanted kind is among those of the rollout."""
        values: dict[str, Any] = {}
        for name in self._wanted:
            if name == "resources":
                values[name] = resources
            elif name == "rollout":
                values[name] = rollout
            elif name == "llm":
                llm = self._first(resources, LLM)
                bind = self._strip_proxy and isinstance(llm, ProxyLLM)
                values[name] = llm.with_attempted_rollout(rollout) if bind else llm  # type: ignore[attr-defined]
            else:
                values[name] = self._first(resources, PromptTemplate)
        return values

    def _first(self, resources: NamedResources, kind: type[_R]) -> _R:
        found = [(name, resource) for name, resource in resources.items() if isinstance(resource, kind)]
        if not found:
            raise ValueError(
                f"{self._name} needs a resource of type {kind.__name__}, and the rollout's resources have none "
                f"({', '.join(resources) or 'they are empty'}); publish one, or name resources that have it"
            )
        if len(found) > 1:
            logger.warning(
                "%s: %d resources of type %s (%s); %r is used",
                *(self._name, len(found), kind.__name__, ", ".join(name for name, _ in found), found[0][0]),
            )
        return found[0][1]


def as_agent(candidate: Any) -> LitAgent:
    """An agent from an agent, an agent class without constructor arguments, or a function.

    Raises TypeError for anything else and NotImplementedError for a function whose parameters cannot be supplied.
    """
    if isinstance(candidate, LitAgent):
        return candidate
    if isinstance(candidate, type) and issubclass(candidate, LitAgent):
        return candidate()
    if callable(candidate) and not isinstance(candidate, type):
        return FunctionAgent(candidate)
    raise TypeError(f"{candidate!r} is no agent: give a function, a decorated function or a LitAgent")
