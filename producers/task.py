"""A task in words: checked field by field, turned into a RolloutRequested event, read from a line of JSON."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, TypedDict

from agl_stream.errors import UsageError
from agl_stream.producers import json_text
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import event_id, new_rollout_id

MODES = ("train", "val", "test")
RETRYABLE = ("failed", "timeout", "unresponsive")
_ID = re.compile(r"[A-Za-z0-9._:~@-]{1,128}")


class TaskFields(TypedDict, total=False):
    """What a task may say beside its input."""

    rollout_id: str | None
    mode: str | None
    resources_id: str | None
    resources_version: int | None
    config: Any
    metadata: Mapping[str, Any] | None
    run_id: str | None
    group_id: str | None
    group_size: int | None


TASK_KEYS = ("input", *TaskFields.__annotations__)


class TaskError(UsageError):
    """A task that cannot be enqueued. The message begins with the field's name."""


def request_of(
    input: Any,
    *,
    rollout_id: str | None = None,
    mode: str | None = None,
    resources_id: str | None = None,
    resources_version: int | None = None,
    config: Any = None,
    metadata: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    group_id: str | None = None,
    group_size: int | None = None,
) -> Event:
    """A RolloutRequested event with the whole input inline. The same ``rollout_id`` gives the same event_id.

    Raises TaskError naming the field. ``input`` is any JSON value, dataclass or pydantic model;
    ``config`` a mapping, dataclass or model with the fields of RolloutConfig.
    """
    if mode is not None and mode not in MODES:
        raise TaskError(f"mode: {mode!r} is none of {', '.join(MODES)}")
    if resources_version is not None and resources_id is None:
        raise TaskError("resources_version: needs resources_id, too")
    rollout_id = _id("rollout_id", rollout_id) or new_rollout_id()
    return {
        "event_id": event_id("RolloutRequested", rollout_id),
        "rollout_id": rollout_id,
        "input": _json("input", input),
        "mode": mode or "unknown",
        "resources_id": _id("resources_id", resources_id),
        "resources_version": _whole("resources_version", resources_version, least=0),
        "config": checked_config(config),
        "metadata": _json("metadata", _mapping("metadata", metadata)),
        "run_id": _id("run_id", run_id),
        "group_id": _id("group_id", group_id),
        "group_size": _whole("group_size", group_size, least=1),
    }


def checked_config(config: Any) -> dict[str, Any]:
    """The ``config`` record of a request; TaskError names the field (``config.max_attempts``)."""
    given = _mapping("config", config)
    checks = {
        "timeout_seconds": _seconds_or_none,
        "unresponsive_seconds": _seconds_or_none,
        "max_attempts": lambda name, value: _whole(name, 1 if value is None else value, least=1),
        "retry_condition": _retry_condition,
        "backoff_seconds": lambda name, value: 0.0 if value is None else _seconds(name, value, least=0.0),
    }
    for key in given:
        if key not in checks:
            raise TaskError(f"config.{key}: unknown; known are {', '.join(checks)}")
    return {key: check(f"config.{key}", given.get(key)) for key, check in checks.items()}


def task_of_line(value: Any) -> dict[str, Any]:
    """Keyword arguments for ``request_of`` from one parsed line of a task file.

    An object with at least one of TASK_KEYS is a task: it must have ``input`` and no other keys. Any other JSON
    value is itself the input. (To pass an object that has such a key as the input, wrap it: {"input": {...}}.)
    """
    if not isinstance(value, dict) or not any(key in TASK_KEYS for key in value):
        return {"input": value}
    if "input" not in value:
        present = next(key for key in value if key in TASK_KEYS)
        raise TaskError(
            f'input: missing beside {present!r}; write {{"input": ...}} (an object with any of '
            f"{', '.join(TASK_KEYS)} is read as a task)"
        )
    for key in value:
        if key not in TASK_KEYS:
            raise TaskError(
                f'{key}: unknown beside input; if the whole line is the input, wrap it: {{"input": {{...}}}}'
            )
    return value


def _id(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise TaskError(f"{name}: {value!r:.140} is no id (1 to 128 letters, digits, and . _ : ~ @ -)")
    return value


def _whole(name: str, value: Any, *, least: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise TaskError(f"{name}: {value!r:.80} is no whole number from {least}")
    return value


def _seconds_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _seconds(name, value, least=1e-9)


def _seconds(name: str, value: Any, *, least: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        raise TaskError(f"{name}: {value!r:.80} is no {'positive ' if least > 0 else ''}number of seconds")
    return float(value)


def _retry_condition(name: str, value: Any) -> list[str]:
    statuses = [] if value is None else value
    if not isinstance(statuses, list | tuple | set | frozenset):
        raise TaskError(f"{name}: {value!r:.80} is no list")
    for status in statuses:
        if status not in RETRYABLE:
            raise TaskError(f"{name}: {status!r:.80} is none of {', '.join(RETRYABLE)}")
    return [status for status in RETRYABLE if status in statuses]


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if callable(dump := getattr(value, "model_dump", None)):
        value = dump()
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TaskError(f"{name}: {value!r:.80} is no object with string keys")
    return dict(value)


def _json(name: str, value: Any) -> str:
    try:
        text = json_text.dumps(value)
        json_text.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"{name}: {error}") from None
    return text
