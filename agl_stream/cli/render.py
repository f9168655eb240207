"""Events for eyes and programs: bytes become token ids, JSON text becomes JSON, a record becomes a line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agl_stream.cli.output import human_seconds, shorten
from agl_stream.schemas.tokens import unpack_floats, unpack_ids

_TOKEN_IDS = {"prompt_token_ids", "response_token_ids"}
_LOGPROBS = {"response_logprobs"}
_JSON_TEXT = {
    "input",
    "metadata",
    "attributes",
    "events",
    "links",
    "resource",
    "request",
    "response",
    "payload",
    "stats",
    "metrics",
    "resources",
}


def as_json(event: Any) -> Any:
    """A decoded event as plain JSON values.

    Token ids become lists of integers and logprobs lists of numbers; fields that hold JSON text become what
    the text says, or stay text where it does not parse; other bytes become text, or `base64:...`.
    """
    if isinstance(event, dict):
        return {name: _field(name, value) for name, value in event.items()}
    if isinstance(event, list):
        return [as_json(item) for item in event]
    return _text(event) if isinstance(event, bytes) else event


def _field(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            if name in _TOKEN_IDS:
                return unpack_ids(value)
            if name in _LOGPROBS:
                return unpack_floats(value)
        except ValueError:
            pass  # Not a whole number of them: the bytes are shown as they are.
        return _text(value)
    if isinstance(value, str) and name in _JSON_TEXT:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return as_json(value)


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
    return text if text.isprintable() else "base64:" + base64.b64encode(value).decode()


def key_text(key: bytes | None) -> str | None:
    """A record's key as text."""
    return None if key is None else _text(key)


def clock_time(microseconds: int) -> str:
    """Local wall-clock time with milliseconds, for people."""
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC).astimezone()
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def tokens_text(count: int, first: list[int]) -> str:
    """`12 tokens [1 5 9 ...]`"""
    shown = " ".join(str(token) for token in first[:6])
    return f"{count} tokens [{shown}{' …' if count > 6 else ''}]"


def one_line(event_type: str, event: dict[str, Any], width: int = 150) -> str:
    """What a person wants to know of one event, on one line of about `width` characters."""
    return shorten(_SUMMARIES.get(event_type, _any_event)(event), width)


def _requested(e: dict[str, Any]) -> str:
    group = f" group {e['group_id']}" if e["group_id"] else ""
    return f"{e['rollout_id'] or '(id from offset)'} {e['mode']}{group} input {e['input']}"


def _control(e: dict[str, Any]) -> str:
    return f"{e['rollout_id']} {e['action']} {e['reason'] or ''}"


def _dispatched(e: dict[str, Any]) -> str:
    return f"{e['rollout_id']} attempt {e['attempt_number']} delivery {e['delivery']} input {e['input']}"


def _attempt_status(e: dict[str, Any]) -> str:
    return (
        f"{e['rollout_id']} attempt {e['attempt_number']} {e['status']}"
        + (f" on {e['worker_id']}" if e["worker_id"] else "")
        + _reward(e["reward"])
        + _why(e)
    )


def _rollout_state(e: dict[str, Any]) -> str:
    return f"{e['rollout_id']} v{e['version']} {e['status']}, {len(e['attempts'])} attempt(s)" + _why(e)


def _span(e: dict[str, Any]) -> str:
    parts = [f"{e['rollout_id']} {e['kind']} {e['name']}"]
    if e["ended_at_us"]:
        parts.append(human_seconds((e["ended_at_us"] - e["started_at_us"]) / 1e6))
    if e["response_token_ids"] is not None:
        packed = e["response_token_ids"]
        ids = unpack_ids(packed[: len(packed) // 4 * 4])
        parts.append("-> " + tokens_text(len(ids), ids))
    if e["resources_version"] is not None:
        parts.append(f"version {e['resources_version']}")
    if e["status"] == "error":
        parts.append(f"ERROR {e['status_description'] or ''}")
    return " ".join(parts) + _reward(e["reward"])


def _triplets(e: dict[str, Any]) -> str:
    shown = "; ".join(
        f"{len(t['prompt_token_ids']) // 4} -> {len(t['response_token_ids']) // 4} tokens" for t in e["triplets"]
    )
    return (
        f"{e['rollout_id']} revision {e['revision']} {e['status']}{_reward(e['reward'])}, "
        f"{len(e['triplets'])} triplet(s) {shown}" + _why(e)
    )


def _batch(e: dict[str, Any]) -> str:
    outcomes: dict[str, int] = {}
    for rollout in e["rollouts"]:
        outcomes[rollout["outcome"]] = outcomes.get(rollout["outcome"], 0) + 1
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    versions = f"version {e['version_in']} -> {e['version_out']}"
    return f"{e['learner_id']} step {e['step']}: {counts}, {e['rows']} rows, {versions}"


def _resources(e: dict[str, Any]) -> str:
    weights = f" weights {e['weights']['uri']}" if e["weights"] else ""
    return f"{e['resources_id']}@{e['version']}{weights} {e['resources']}"


def _heartbeat(e: dict[str, Any]) -> str:
    held = f", {len(e['attempts'])} attempt(s)" if e["attempts"] else ""
    version = f", serves version {e['resources_version']}" if e["resources_version"] is not None else ""
    return f"{e['role']} {e['worker_id']} {e['status']}, {e['slots_free']}/{e['slots_total']} slots free{held}{version}"


def _reject(e: dict[str, Any]) -> str:
    place = f"{e['source_topic']}:{e['source_partition']}:{e['source_offset']}"
    return f"{e['reason_code']} {place} by {e['rejected_by']}: {e['detail']}"


def _any_event(e: dict[str, Any]) -> str:
    return json.dumps(as_json(e), ensure_ascii=False)


def _reward(value: float | None) -> str:
    return "" if value is None else f" reward {value:g}"


def _why(e: dict[str, Any]) -> str:
    if not e["reason_code"]:
        return ""
    detail = e.get("detail")
    return f" ({e['reason_code']}{': ' + detail if detail else ''})"


_SUMMARIES: dict[str, Callable[[dict[str, Any]], str]] = {
    "RolloutRequested": _requested,
    "ControlRequested": _control,
    "AttemptDispatched": _dispatched,
    "AttemptStatusChanged": _attempt_status,
    "RolloutStateChanged": _rollout_state,
    "SpanRecorded": _span,
    "TripletsJoined": _triplets,
    "BatchTrained": _batch,
    "ResourcesPublished": _resources,
    "WorkerHeartbeat": _heartbeat,
    "RecordRejected": _reject,
}
