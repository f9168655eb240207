"""``@rollout``, ``@llm_rollout``, ``@prompt_rollout``: a function becomes an agent and stays callable.

Plain functions serve as agents, too; a decorator checks the signature when the module is loaded and lets
``strip_proxy`` be set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from agl_stream.agents.function_agent import FunctionAgent

_Function = Callable[..., Any]


@overload
def rollout(function: _Function, /) -> FunctionAgent: ...
@overload
def rollout(*, strip_proxy: bool = True) -> Callable[[_Function], FunctionAgent]: ...
def rollout(function: _Function | None = None, /, *, strip_proxy: bool = True) -> Any:
    """The agent made of a function ``(task[, resources][, rollout][, llm][, prompt_template])``, by names.

    Raises NotImplementedError when the function asks for something else.
    """
    return _decorated(function, None, strip_proxy)


@overload
def llm_rollout(function: _Function, /) -> FunctionAgent: ...
@overload
def llm_rollout(*, strip_proxy: bool = True) -> Callable[[_Function], FunctionAgent]: ...
def llm_rollout(function: _Function | None = None, /, *, strip_proxy: bool = True) -> Any:
    """The agent made of a function ``(task, llm[, rollout])``. Raises ValueError when it does not ask for ``llm``."""
    return _decorated(function, "llm", strip_proxy)


@overload
def prompt_rollout(function: _Function, /) -> FunctionAgent: ...
@overload
def prompt_rollout() -> Callable[[_Function], FunctionAgent]: ...
def prompt_rollout(function: _Function | None = None, /) -> Any:
    """The agent made of a function ``(task, prompt_template[, rollout])``. Raises ValueError when it does not ask
    for ``prompt_template``."""
    return _decorated(function, "prompt_template", True)


def _decorated(function: _Function | None, required: str | None, strip_proxy: bool) -> Any:
    def wrap(wrapped: _Function) -> FunctionAgent:
        agent = FunctionAgent(wrapped, strip_proxy=strip_proxy)
        if required is not None and required not in agent.wanted:
            raise ValueError(f"{wrapped.__qualname__} has no parameter named {required!r}, which its decorator is for")
        return agent

    return wrap if function is None else wrap(function)
