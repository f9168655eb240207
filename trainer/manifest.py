"""The manifest of a training step: what was trained, from which version to which, chained by hash.

A manifest is the BatchTrained event. Its ``content_hash`` says what data went in, its ``manifest_hash`` binds
data, versions and offsets to the manifest before it; whoever holds the last hash can check the whole run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from agl_stream.errors import AglStreamError
from agl_stream.schemas.ids import event_id

Event = dict[str, Any]
Offsets = Mapping[tuple[str, int], int]


class ChainBroken(AglStreamError):
    """Manifests of a learner do not follow each other."""


def content_hash(outcomes: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over the sorted (rollout_id, attempt_id, content_hash) of the trained rollouts."""
    trained = sorted(
        (o["rollout_id"], o["attempt_id"], o["content_hash"]) for o in outcomes if o["outcome"] == "trained"
    )
    return _sha256(trained)


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over identity, content hash, versions, offsets and previous hash; times and metrics are left out."""
    offsets = sorted((o["topic"], o["partition"], o["next_offset"]) for o in manifest["input_offsets"])
    names = ("learner_id", "step", "run_id", "resources_id", "version_in", "version_out", "content_hash")
    return _sha256([*(manifest[name] for name in names), offsets, manifest["previous_hash"]])


def build_manifest(
    *,
    learner_id: str,
    step: int,
    run_id: str | None,
    outcomes: list[dict[str, Any]],
    rows: int,
    adapter: str,
    resources_id: str,
    version_in: int,
    version_out: int,
    offsets: Offsets,
    previous_hash: str | None,
    metrics: Mapping[str, float],
    started_at_us: int,
    ended_at_us: int,
) -> Event:
    """A complete BatchTrained event. ``offsets``: (topic, partition) -> next offset. Same step, same event id."""
    manifest: Event = {
        "event_id": event_id("batch", learner_id, step),
        "occurred_at_us": ended_at_us,
        "learner_id": learner_id,
        "step": step,
        "run_id": run_id,
        "rollouts": outcomes,
        "resources_id": resources_id,
        "version_in": version_in,
        "version_out": version_out,
        "input_offsets": [
            {"topic": topic, "partition": partition, "next_offset": offset}
            for (topic, partition), offset in sorted(offsets.items())
        ],
        "rows": rows,
        "content_hash": content_hash(outcomes),
        "previous_hash": previous_hash,
        "adapter": adapter,
        "metrics": json.dumps(dict(metrics), sort_keys=True, allow_nan=False),
        "started_at_us": started_at_us,
        "ended_at_us": ended_at_us,
    }
    manifest["manifest_hash"] = manifest_hash(manifest)
    return manifest


def verify_chain(manifests: Iterable[Event]) -> int:
    """Checks one learner's manifests, in any order and with repetitions; returns the number of steps.

    Raises ChainBroken naming the step: two different manifests of a step, a missing step, a hash that does not fit,
    versions that do not follow, a rollout trained twice.
    """
    by_step: dict[int, Event] = {}
    for manifest in manifests:
        known = by_step.setdefault(manifest["step"], manifest)
        if known["manifest_hash"] != manifest["manifest_hash"]:
            raise ChainBroken(f"step {manifest['step']} has two manifests with different hashes")
    previous: Event | None = None
    trained: dict[str, int] = {}
    for number, step in enumerate(sorted(by_step), start=1):
        manifest = by_step[step]
        if step != number:
            raise ChainBroken(f"step {number} has no manifest")
        if content_hash(manifest["rollouts"]) != manifest["content_hash"]:
            raise ChainBroken(f"step {step}: content_hash does not fit its rollouts")
        if manifest_hash(manifest) != manifest["manifest_hash"]:
            raise ChainBroken(f"step {step}: manifest_hash does not fit the manifest")
        expected = previous["manifest_hash"] if previous else None
        if manifest["previous_hash"] != expected:
            raise ChainBroken(f"step {step}: previous_hash is not the manifest_hash of step {step - 1}")
        if previous and manifest["version_in"] != previous["version_out"]:
            raise ChainBroken(f"step {step}: started from another version than step {step - 1} made")
        for outcome in manifest["rollouts"]:
            if trained.setdefault(outcome["rollout_id"], step) != step:
                raise ChainBroken(
                    f"rollout {outcome['rollout_id']} is settled in steps {trained[outcome['rollout_id']]} and {step}"
                )
        previous = manifest
    return len(by_step)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
