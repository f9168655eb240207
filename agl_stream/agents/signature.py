"""Which of a rollout's things a function asks for, read from its parameter names once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

INJECTABLE = ("resources", "rollout", "llm", "prompt_template")


def wanted_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names to pass by keyword, in INJECTABLE's order; the first parameter is the task, whatever its name.

    Raises NotImplementedError naming the parameter that cannot be supplied. Parameters with a default that are not
    injectable keep their default.
    """
    title = getattr(function, "__qualname__", repr(function))
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
        raise NotImplementedError(f"agent {title} takes no task: its first parameter receives it")
    found: set[str] = set()
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in INJECTABLE and parameter.kind is not parameter.POSITIONAL_ONLY:
            found.add(parameter.name)
        elif parameter.default is parameter.empty:
            raise NotImplementedError(
                f"agent {title} asks for {parameter.name!r}, which is not supplied; after the task it may ask, "
                f"by name, for {', '.join(INJECTABLE)}, or give the parameter a default"
            )
    return tuple(name for name in INJECTABLE if name in found)


def is_coroutine_callable(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: an async function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the bound method is what is inspected
    )
