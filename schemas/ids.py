"""Ids. Random where something new begins, derived where a second try must give the same one."""

from __future__ import annotations

import hashlib
import os

_SEPARATOR = b"\x1f"


def derived(length: int, *parts: object) -> str:
    """``length`` hex digits that depend only on ``parts``; the same parts give the same id for ever."""
    digest = hashlib.sha256(_SEPARATOR.join(str(part).encode() for part in parts))
    return digest.hexdigest()[:length]


def new_rollout_id() -> str:
    """``ro-`` and 16 random hex digits (the reference has 12; a log keeps ids for ever)."""
    return "ro-" + os.urandom(8).hex()


def derived_rollout_id(*parts: object) -> str:
    """A rollout id for a request that must be idempotent: (run, step, prompt, sample) or (topic, partition, offset)."""
    return "ro-" + derived(16, "rollout", *parts)


def attempt_id(rollout_id: str, number: int) -> str:
    """The id of a rollout's attempt ``number`` (from 1); a replay yields the same."""
    return "at-" + derived(12, "attempt", rollout_id, number)


def new_resources_id() -> str:
    return "rs-" + os.urandom(6).hex()


def new_id() -> str:
    """A fresh event id, 32 hex digits."""
    return os.urandom(16).hex()


def event_id(*parts: object) -> str:
    """An event id, 32 hex digits, that a second emission of the same fact repeats."""
    return derived(32, "event", *parts)


def new_span_id() -> str:
    """16 hex digits as in OpenTelemetry."""
    return os.urandom(8).hex()


def new_trace_id() -> str:
    """32 hex digits as in OpenTelemetry."""
    return os.urandom(16).hex()
