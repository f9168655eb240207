"""The topic catalogue: what each topic carries, how it is keyed and how long it is kept.

Names here are without namespace; on the wire they are ``<namespace>.<name>``. Topics about rollouts share key
and partition count, so that a rollout's requests, attempts and spans meet in one partition number.
"""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Topic:
    """One topic. ``partitions`` None: the setting ``partitions``; ``retention_ms`` -1: for ever."""

    name: str
    event: str
    key: str
    doc: str
    cleanup: str = "delete"
    retention_ms: int = 7 * DAY_MS
    partitions: int | None = None

    def config(self) -> dict[str, str]:
        """Kafka topic configuration."""
        config = {"cleanup.policy": self.cleanup}
        if "delete" in self.cleanup:
            config["retention.ms"] = str(self.retention_ms)
        return config


TOPICS: dict[str, Topic] = {
    topic.name: topic
    for topic in (
        Topic("rollout-requests", "RolloutRequested", "rollout_id", "Rollouts that somebody wants."),
        Topic("controls", "ControlRequested", "rollout_id", "Cancel, requeue, start an attempt, update."),
        Topic(
            "dispatch",
            "AttemptDispatched",
            "rollout_id",
            "Attempts offered to runners; the dispatcher chooses the partition.",
            retention_ms=DAY_MS,
        ),
        Topic("attempts", "AttemptStatusChanged", "rollout_id", "What runners and the watchdog say of attempts."),
        Topic("spans", "SpanRecorded", "rollout_id", "Everything an attempt did."),
        Topic(
            "resources",
            "ResourcesPublished",
            "resources_id@version",
            "Versions of prompts, endpoints and weights.",
            cleanup="compact",
            partitions=1,
        ),
        Topic(
            "workers",
            "WorkerHeartbeat",
            "worker_id",
            "Heartbeats of runners, servers and trainers.",
            cleanup="compact,delete",
            partitions=1,
        ),
        Topic("rollouts", "RolloutStateChanged", "rollout_id", "State of every rollout.", cleanup="compact"),
        Topic("triplets", "TripletsJoined", "group_id", "Training data of closed rollouts, by group."),
        Topic(
            "batches",
            "BatchTrained",
            "learner_id",
            "Manifest of every training step.",
            retention_ms=-1,
            partitions=1,
        ),
        Topic(
            "rejects",
            "RecordRejected",
            "source key",
            "What was not processed, and why.",
            retention_ms=30 * DAY_MS,
        ),
    )
}

EVENT_TOPIC: dict[str, str] = {topic.event: topic.name for topic in TOPICS.values()}


def topic_name(namespace: str, name: str) -> str:
    """Name on the wire."""
    return f"{namespace}.{name}"


def local_name(namespace: str, wire_name: str) -> str:
    """Name without namespace; a foreign topic keeps its own."""
    prefix = namespace + "."
    return wire_name.removeprefix(prefix)
