"""What it takes to make a cluster's topics match the catalogue: a pure comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

BATCH_OVERHEAD_BYTES = 1024
"""What a batch adds to its only record, and more."""

Action = Literal["create", "configure", "refuse", "keep"]


_LARGEST = "max.message.bytes"


@dataclass(frozen=True)
class ExistingTopic:
    """A topic on the cluster: its partition count and its configuration."""

    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """What to do about one topic. `config` holds what a create or configure sets; `why` explains a refusal."""

    action: Action
    topic: str
    partitions: int
    config: dict[str, str]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(existing: Mapping[str, ExistingTopic], settings: Settings) -> list[Change]:
    """One change for each topic of the catalogue, in its order; `existing` is by name on the wire.

    Another partition count than wanted is refused, more as well as fewer: keys would map to other
    partitions, and a rollout's events would no longer meet in one place. A topic must take the largest record that
    producers send, which is more than Kafka's default of 1 MB; a larger limit than that is left as it is.
    """
    largest = settings.max_record_bytes + BATCH_OVERHEAD_BYTES
    changes: list[Change] = []
    for topic in TOPICS.values():
        name = settings.topic(topic.name)
        partitions = topic.partitions or settings.partitions
        wanted = {**topic.config(), _LARGEST: str(largest)}
        found = existing.get(name)
        if found is None:
            changes.append(Change("create", name, partitions, wanted))
        elif found.partitions != partitions:
            changes.append(
                Change(
                    "refuse",
                    name,
                    found.partitions,
                    {},
                    f"{found.partitions} partitions where {partitions} are wanted, but a keyed topic keeps its count: "
                    f"set AGL_STREAM_PARTITIONS={found.partitions}, or choose another AGL_STREAM_NAMESPACE",
                )
            )
        else:
            differs = {key: value for key, value in wanted.items() if not _is_met(key, value, found.config.get(key))}
            action: Action = "configure" if differs else "keep"
            changes.append(Change(action, name, partitions, differs))
    return changes


def _is_met(key: str, wanted: str, found: str | None) -> bool:
    if key == _LARGEST and found is not None:
        return int(found) >= int(wanted)
    return found == wanted
