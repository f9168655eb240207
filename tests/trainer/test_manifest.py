"""Manifests: what is hashed, and what a chain of them proves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_stream.schemas.codec import Codec
from agl_stream.trainer.manifest import ChainBroken, build_manifest, content_hash, manifest_hash, verify_chain


def outcome(rollout_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "attempt_id": "at-" + rollout_id,
        "revision": 0,
        "group_id": None,
        "content_hash": "c-" + rollout_id,
        "outcome": "trained",
        "reason_code": None,
        "reward": 1.0,
        "rows": 1,
        **fields,
    }


def chain(steps: int) -> list[dict[str, Any]]:
    manifests: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        manifests.append(
            build_manifest(
                learner_id="learner",
                step=step,
                run_id="run",
                outcomes=[outcome(f"ro-{step}-{i}") for i in range(3)],
                rows=3,
                adapter="llm-calls@1",
                resources_id="policy",
                version_in=step,
                version_out=step + 1,
                offsets={("triplets", 1): step * 2, ("triplets", 0): step},
                previous_hash=manifests[-1]["manifest_hash"] if manifests else None,
                metrics={"reward_mean": 0.5},
                started_at_us=step,
                ended_at_us=step + 1,
            )
        )
    return manifests


def test_a_manifest_is_a_valid_event_with_a_repeatable_id() -> None:
    first, again = chain(1)[0], chain(1)[0]
    assert first == again
    event_type, decoded = (codec := Codec()).decode(codec.encode("BatchTrained", first))
    assert event_type == "BatchTrained"
    assert decoded["manifest_hash"] == first["manifest_hash"]
    assert json.loads(decoded["metrics"]) == {"reward_mean": 0.5}
    assert [o["partition"] for o in decoded["input_offsets"]] == [0, 1]


def test_the_content_hash_is_over_trained_rollouts_in_any_order() -> None:
    a, b, dropped = outcome("a"), outcome("b"), outcome("c", outcome="dropped")
    assert content_hash([a, b]) == content_hash([b, dropped, a])
    assert content_hash([a, b]) != content_hash([a])
    assert content_hash([a]) != content_hash([outcome("a", content_hash="other")])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 9),
        ("learner_id", "other"),
        ("run_id", None),
        ("resources_id", "other"),
        ("version_in", 7),
        ("version_out", 7),
        ("content_hash", "00"),
        ("previous_hash", "00"),
        ("input_offsets", []),
    ],
)
def test_the_manifest_hash_covers_identity_data_versions_offsets_and_the_one_before(name: str, value: Any) -> None:
    manifest = chain(1)[0]
    assert manifest_hash({**manifest, name: value}) != manifest["manifest_hash"]


def test_the_manifest_hash_leaves_times_and_metrics_out() -> None:
    manifest = chain(1)[0]
    assert manifest_hash({**manifest, "metrics": "{}", "ended_at_us": 0}) == manifest["manifest_hash"]


def test_a_chain_verifies_in_any_order_and_with_repetitions() -> None:
    manifests = chain(4)
    assert verify_chain([manifests[2], *manifests, manifests[0]]) == 4
    assert verify_chain([]) == 0


def test_broken_chains_are_named() -> None:
    manifests = chain(3)
    with pytest.raises(ChainBroken, match="step 2 has no manifest"):
        verify_chain([manifests[0], manifests[2]])
    changed = {**manifests[1], "version_in": 5}
    with pytest.raises(ChainBroken, match="step 2: manifest_hash"):
        verify_chain([manifests[0], changed, manifests[2]])
    with pytest.raises(ChainBroken, match="step 2 has two manifests"):
        verify_chain([*manifests, {**manifests[1], "manifest_hash": "other"}])
    swapped = [{**manifests[1], "rollouts": [outcome("stranger")]}]
    with pytest.raises(ChainBroken, match="content_hash does not fit"):
        verify_chain([manifests[0], *swapped])
    forked = {**manifests[1], "previous_hash": "00"}
    forked["manifest_hash"] = manifest_hash(forked)
    with pytest.raises(ChainBroken, match="step 2: previous_hash"):
        verify_chain([manifests[0], forked])


def test_a_rollout_settled_in_two_steps_breaks_the_chain() -> None:
    manifests = chain(2)
    again = {**manifests[1], "rollouts": manifests[0]["rollouts"]}
    again["content_hash"] = content_hash(again["rollouts"])
    again["manifest_hash"] = manifest_hash(again)
    with pytest.raises(ChainBroken, match="is settled in steps 1 and 2"):
        verify_chain([manifests[0], again])
