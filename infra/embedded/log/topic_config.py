"""Topic settings: Kafka's names, which of them the broker acts on, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_NO_LIMIT = -1
_DAY_MS = 86_400_000
_FOREVER = 2**63 - 1


class InvalidTopicConfig(ValueError):
    """A setting that is unknown, has an impossible value, or asks for what the broker does not do."""


def _whole(minimum: int, maximum: int = _FOREVER) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not minimum <= int(value) <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum}")

    return check


def _ratio(value: str) -> None:
    if not 0 <= float(value) <= 1:
        raise ValueError("must be from 0 to 1")


def _cleanup_policy(value: str) -> None:
    if not set(value.split(",")) <= {"delete", "compact"}:
        raise ValueError("must be delete, compact or both")


def _only(*accepted: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in accepted:
            raise ValueError(f"only {' or '.join(accepted)} is supported by the embedded broker")

    return check


def _anything(value: str) -> None:
    del value


_CHECKS: dict[str, tuple[str, Callable[[str], None]]] = {
    # name: (default, check); the first group has an effect
    "cleanup.policy": ("delete", _cleanup_policy),
    "retention.ms": (str(7 * _DAY_MS), _whole(_NO_LIMIT)),
    "retention.bytes": (str(_NO_LIMIT), _whole(_NO_LIMIT)),
    "segment.bytes": (str(128 * 1024 * 1024), _whole(1024, 2**31 - 1)),
    "segment.ms": (str(7 * _DAY_MS), _whole(1)),
    "max.message.bytes": (str(16 * 1024 * 1024), _whole(0, 2**31 - 1)),
    "delete.retention.ms": (str(_DAY_MS), _whole(0)),
    "min.cleanable.dirty.ratio": ("0.5", _ratio),
    "min.compaction.lag.ms": ("0", _whole(0)),
    "max.compaction.lag.ms": (str(_FOREVER), _whole(1)),
    # accepted at the value that describes what the broker does anyway
    "compression.type": ("producer", _only("producer")),
    "message.timestamp.type": ("CreateTime", _only("CreateTime")),
    "min.insync.replicas": ("1", _only("1")),
    "unclean.leader.election.enable": ("false", _only("false", "true")),
    "remote.storage.enable": ("false", _only("false")),
    # accepted and without effect: tuning of Kafka's own storage
    "file.delete.delay.ms": ("60000", _whole(0)),
    "flush.messages": (str(_FOREVER), _whole(1)),
    "flush.ms": (str(_FOREVER), _whole(0)),
    "follower.replication.throttled.replicas": ("", _anything),
    "index.interval.bytes": ("16384", _whole(0)),
    "leader.replication.throttled.replicas": ("", _anything),
    "message.downconversion.enable": ("true", _only("true", "false")),
    "message.format.version": ("3.0-IV1", _anything),
    "message.timestamp.after.max.ms": (str(_FOREVER), _whole(0)),
    "message.timestamp.before.max.ms": (str(_FOREVER), _whole(0)),
    "message.timestamp.difference.max.ms": (str(_FOREVER), _whole(0)),
    "preallocate": ("false", _only("false", "true")),
    "segment.index.bytes": ("10485760", _whole(4)),
    "segment.jitter.ms": ("0", _whole(0)),
}

DEFAULTS: dict[str, str] = {name: default for name, (default, _) in _CHECKS.items()}


def check_topic_config(overrides: Mapping[str, str | None]) -> None:
    """Raise InvalidTopicConfig, naming the setting, unless every override can be taken."""
    for name, value in overrides.items():
        if name not in _CHECKS:
            raise InvalidTopicConfig(f"unknown topic config {name}")
        if value is None:
            raise InvalidTopicConfig(f"topic config {name} has no value")
        try:
            _CHECKS[name][1](value)
        except ValueError as error:
            raise InvalidTopicConfig(f"topic config {name} = {value!r}: {error}") from error


@dataclass(slots=True)
class TopicConfig:
    """The settings that the log acts on, parsed. Shared by a topic's partitions and changed in place."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    compact: bool
    delete: bool

    @classmethod
    def parse(cls, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
        """From checked overrides over the broker's defaults."""
        values = {**defaults, **overrides}
        policies = values["cleanup.policy"].split(",")
        return cls(
            retention_ms=int(values["retention.ms"]),
            retention_bytes=int(values["retention.bytes"]),
            segment_bytes=int(values["segment.bytes"]),
            segment_ms=int(values["segment.ms"]),
            max_message_bytes=int(values["max.message.bytes"]),
            delete_retention_ms=int(values["delete.retention.ms"]),
            min_cleanable_dirty_ratio=float(values["min.cleanable.dirty.ratio"]),
            min_compaction_lag_ms=int(values["min.compaction.lag.ms"]),
            max_compaction_lag_ms=int(values["max.compaction.lag.ms"]),
            compact="compact" in policies,
            delete="delete" in policies,
        )

    def update(self, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Take changed overrides."""
        fresh = self.parse(overrides, defaults)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
