"""Operations: spans with a duration, an input and an output, around a function or a block.

The active rollout is looked up when the operation runs, so a function decorated at module level, long before any
rollout, is recorded all the same. Spans emitted within an operation become its children.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar, overload

from agl_stream.producers import json_text, semconv
from agl_stream.producers.attributes import Attribute, flatten, flatten_any, of_exception, safe_text
from agl_stream.producers.context import ActiveRollout, activate, current
from agl_stream.producers.emitters.emit import emit
from agl_stream.producers.spans import CLOCK
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import new_span_id

F = TypeVar("F", bound=Callable[..., Any])


@overload
def operation(fn: F, /) -> F: ...


@overload
def operation(*, name: str | None = None, propagate: bool = True, **attributes: Any) -> Operation: ...


def operation(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, propagate: bool = True, **attributes: Any
) -> Any:
    """``@operation``, ``@operation(name="search")``, ``with operation(name="search") as op:`` (also ``async with``).

    The span is named agentlightning.operation; ``name`` (default: the function's) is an attribute. A decorated
    function, sync or async, has its bound arguments and its result recorded; values without a JSON form by their
    ``repr``. An exception marks the span as an error and goes on. TypeError for generator functions: open an
    operation within them instead.
    """
    if semconv.OPERATION_NAME in attributes:
        raise ValueError(f"give name=..., not the attribute {semconv.OPERATION_NAME}")
    made = Operation(name, flatten(attributes), propagate)
    return made if fn is None else made(fn)


class Operation:
    """What ``operation(...)`` returns: a decorator, and a context manager for one use at a time."""

    def __init__(self, name: str | None, attributes: Mapping[str, Attribute], propagate: bool) -> None:
        self._name = name
        self._attributes = attributes
        self._propagate = propagate
        self._recording: Recording | None = None

    def __call__(self, fn: F) -> F:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(f"{fn.__qualname__} is a generator function: use `with operation():` within it")
        signature = inspect.signature(fn)
        name = self._name or fn.__qualname__

        def start(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
            recording = Recording(name, self._attributes, self._propagate)
            try:
                recording.set_arguments(signature.bind(*args, **kwargs))
            except TypeError:
                # a wrong call: the function itself will say so, within the operation
                recording.set_input(*args, **kwargs)
            return recording

        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with start(args, kwargs) as recording:
                    result = await fn(*args, **kwargs)
                    recording.set_output(result)
                    return result

            return awaited  # type: ignore[return-value]

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            with start(args, kwargs) as recording:
                result = fn(*args, **kwargs)
                recording.set_output(result)
                return result

        return called  # type: ignore[return-value]

    def __enter__(self) -> Recording:
        if self._recording is not None:
            raise RuntimeError("this operation is open already: call operation(...) anew for each block")
        self._recording = Recording(self._name or "operation", self._attributes, self._propagate)
        return self._recording.__enter__()

    def __exit__(self, *failure: Any) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.__exit__(*failure)

    async def __aenter__(self) -> Recording:
        return self.__enter__()

    async def __aexit__(self, *failure: Any) -> None:
        self.__exit__(*failure)


class Recording:
    """One run of an operation; its span is written when the block ends."""

    def __init__(self, name: str, attributes: Mapping[str, Attribute], propagate: bool) -> None:
        self._attributes: dict[str, Attribute] = {semconv.OPERATION_NAME: name, **attributes}
        self._propagate = propagate
        self._fields: Event = {"name": semconv.SPAN_OPERATION, "kind": "operation", "status": "ok"}
        self._written: Event | None = None
        self._scope: AbstractContextManager[ActiveRollout] | None = None

    def set_input(self, *args: Any, **kwargs: Any) -> Self:
        """Record input: positional values as ``input.args.<N>``, named ones as ``input.<name>``."""
        for index, value in enumerate(args):
            self._attributes.update(flatten_any(f"{semconv.OPERATION_INPUT}.args.{index}", value))
        for name, value in kwargs.items():
            self._attributes.update(flatten_any(f"{semconv.OPERATION_INPUT}.{name}", value))
        return self

    def set_arguments(self, bound: inspect.BoundArguments) -> None:
        """Record a call's arguments by parameter name; ``self`` and ``cls`` are left out."""
        for name, value in bound.arguments.items():
            if name not in ("self", "cls"):
                self._attributes.update(flatten_any(f"{semconv.OPERATION_INPUT}.{name}", value))

    def set_output(self, value: Any) -> Self:
        """Record the result."""
        self._attributes.update(flatten_any(semconv.OPERATION_OUTPUT, value))
        return self

    def set_attributes(self, attributes: Mapping[str, Any]) -> Self:
        """Add attributes of one's own."""
        self._attributes.update(flatten(attributes))
        return self

    def span(self) -> Event | None:
        """The span, once the block has ended."""
        return self._written

    def __enter__(self) -> Recording:
        # the order is the start's: an operation comes before what happens within it
        self._fields |= {"span_id": new_span_id(), "sequence_id": CLOCK.tick(), "started_at_us": now_us()}
        if self._propagate and (active := current()) is not None:
            self._fields["parent_id"] = active.parent_id
            self._scope = activate(active.writer, parent_id=self._fields["span_id"])
            self._scope.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._scope is not None:
            self._scope.__exit__(None, None, None)
        self._fields["ended_at_us"] = now_us()
        self._fields["attributes"] = json_text.dumps(self._attributes)
        if error is not None:
            happened = {
                "name": "exception",
                "timestamp": self._fields["ended_at_us"] / 1e6,
                "attributes": of_exception(error, escaped=True),
            }
            self._fields |= {
                "status": "error",
                "status_description": f"{type(error).__name__}: {safe_text(error)}"[:500],
                "events": json_text.dumps([happened]),
            }
        self._written = emit(self._fields, propagate=self._propagate)
