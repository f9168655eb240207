"""Events of one small story: a rollout with a retry, two model calls, a reward, a joined triplet, a training step."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import attempt_id
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.tokens import pack_floats, pack_ids

START_US = 1_790_000_000_000_000
ROLLOUT = "ro-story"
GROUP = "gr-story"


def attempt(number: int, status: str, **fields: Any) -> dict[str, Any]:
    base = {
        "attempt_id": attempt_id(ROLLOUT, number),
        "attempt_number": number,
        "status": status,
        "dispatched_at_us": START_US + number * 1000,
        "started_at_us": START_US + number * 2000,
        "worker_id": "runner-1",
    }
    return {**base, **fields}


def state(version: int, status: str, attempts: list[dict[str, Any]], rollout_id: str = ROLLOUT) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "version": version,
        "status": status,
        "input": '"3+4="',
        "mode": "train",
        "group_id": GROUP,
        "requested_at_us": START_US,
        "ended_at_us": START_US + 9_000_000 if status == "succeeded" else None,
        "attempts": attempts,
    }


def model_call(number: int, started_after_us: int) -> dict[str, Any]:
    return {
        "rollout_id": ROLLOUT,
        "attempt_id": attempt_id(ROLLOUT, 2),
        "span_id": f"{number:016x}",
        "trace_id": "a" * 32,
        "sequence_id": number,
        "name": "chat",
        "kind": "llm_call",
        "started_at_us": START_US + started_after_us,
        "ended_at_us": START_US + started_after_us + 4200,
        "resources_version": 3,
        "prompt_token_ids": pack_ids([1, 2, 3]),
        "response_token_ids": pack_ids([7, 8]),
        "response_logprobs": pack_floats([-0.5, -0.25]),
    }


def tell(producer: EventProducer) -> None:
    """Write the whole story, some of it twice and out of order."""
    failed = attempt(1, "failed", ended_at_us=START_US + 3000, reason_code="agent_error", detail="ValueError: no")
    done = attempt(2, "succeeded", ended_at_us=START_US + 8_000_000, reward=1.0)
    states = [
        state(1, "queuing", []),
        state(4, "succeeded", [failed, done]),
        state(2, "preparing", [attempt(1, "preparing")]),
        state(7, "queuing", [], "ro-waits"),
        state(1, "running", [attempt(1, "running")], "ro-runs"),
    ]
    for event in states:
        producer.send("rollouts", event, key=event["rollout_id"])
    calls = [model_call(2, 5_000_000), model_call(1, 2_000_000), model_call(1, 2_000_000)]
    producer.send("spans", calls[0], key=ROLLOUT)
    # A foreign producer: no key, and a partition of its own choice.
    settings = producer.settings
    codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
    foreign = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for partition, call in enumerate(calls[1:]):
        foreign.produce(settings.topic("spans"), value=codec.encode("SpanRecorded", call), partition=partition)
    foreign.flush()
    other = {**model_call(9, 1), "rollout_id": "ro-other"}
    producer.send("spans", other, key="ro-other")
    reward = {
        **{name: calls[0][name] for name in ("rollout_id", "attempt_id", "trace_id")},
        "span_id": "f" * 16,
        "sequence_id": 3,
        "name": "reward",
        "kind": "reward",
        "reward": 1.0,
        "started_at_us": START_US + 7_000_000,
    }
    producer.send("spans", reward, key=ROLLOUT)
    triplet = {
        "span_id": "1".zfill(16),
        "sequence_id": 1,
        "prompt_token_ids": pack_ids([1, 2, 3]),
        "response_token_ids": pack_ids([7, 8]),
        "resources_version": 3,
    }
    joined = {
        "rollout_id": ROLLOUT,
        "attempt_id": attempt_id(ROLLOUT, 2),
        "attempt_number": 2,
        "status": "succeeded",
        "group_id": GROUP,
        "reward": 1.0,
        "triplets": [triplet],
        "adapter": "llm_calls",
        "adapter_version": "1",
        "content_hash": "c" * 64,
        "occurred_at_us": START_US + 9_500_000,
    }
    producer.send("triplets", joined, key=GROUP)
    settled = {"rollout_id": ROLLOUT, "attempt_id": attempt_id(ROLLOUT, 2), "outcome": "trained", "rows": 1}
    batch = {
        "learner_id": "learner",
        "step": 5,
        "rollouts": [settled],
        "resources_id": "policy",
        "version_in": 3,
        "version_out": 4,
        "rows": 1,
        "content_hash": "d" * 64,
        "ended_at_us": START_US + 12_000_000,
    }
    producer.send("batches", batch, key="learner")
    producer.send("batches", batch, key="learner")
    for version in (3, 4):
        published = {"resources_id": "policy", "version": version, "learner_id": "learner", "step": version + 1}
        producer.send("resources", published, key=f"policy@{version}")
    heartbeat = {"worker_id": "runner-1", "role": "runner", "status": "busy", "interval_seconds": 5.0, "slots_total": 4}
    for free in (4, 1):
        producer.send("workers", {**heartbeat, "slots_free": free}, key="runner-1")
    for offset in range(3):
        reject = {
            "source_topic": "spans",
            "source_partition": 0,
            "source_offset": offset,
            "reason_code": "undecodable" if offset else "not_framed",
            "detail": "broken",
            "rejected_by": "sink",
        }
        producer.send("rejects", reject, key=str(offset))
    producer.flush()
