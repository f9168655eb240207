"""One full sample and one minimal sample of every event, used by the golden files and the round trips."""

from __future__ import annotations

from typing import Any

from agl_stream.schemas.tokens import pack_floats, pack_ids

PRODUCER = {"name": "sample", "instance": "host-1-7", "version": "0.1.0"}
BLOB = {"uri": "ab/abcd", "sha256": "ab" * 32, "length": 300_000}
CONFIG = {
    "timeout_seconds": 30.0,
    "unresponsive_seconds": 5.5,
    "max_attempts": 3,
    "retry_condition": ["failed", "timeout"],
    "backoff_seconds": 0.25,
}
TASK = {
    "input": '{"question": "3+4="}',
    "input_ref": BLOB,
    "mode": "train",
    "resources_id": "rs-1",
    "resources_version": 4,
    "config": CONFIG,
    "metadata": '{"team": "ü"}',
    "run_id": "run-1",
    "group_id": "gr-1",
    "group_size": 8,
}
BASE = {"event_id": "e" * 32, "occurred_at_us": 1_790_000_000_000_001, "producer": PRODUCER}
ATTEMPT = {"rollout_id": "ro-1", "attempt_id": "at-1", "attempt_number": 2}

FULL: dict[str, dict[str, Any]] = {
    "RolloutRequested": {**BASE, "rollout_id": "ro-1", **TASK},
    "ControlRequested": {
        **BASE,
        "rollout_id": "ro-1",
        "action": "cancel",
        "attempt_id": "at-1",
        "reason": "no longer needed",
        "payload": '{"mode": "val"}',
    },
    "AttemptDispatched": {**BASE, **ATTEMPT, "delivery": 2, **TASK, "requested_at_us": 1_790_000_000_000_000},
    "AttemptStatusChanged": {
        **BASE,
        **ATTEMPT,
        "delivery": 1,
        "status": "failed",
        "worker_id": "runner-1",
        "worker_instance": "abc",
        "reason_code": "agent_error",
        "detail": "ValueError: no",
        "reward": -0.5,
        "metadata": '{"k": 1}',
    },
    "SpanRecorded": {
        **BASE,
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "span_id": "0123456789abcdef",
        "trace_id": "0" * 31 + "1",
        "parent_id": "fedcba9876543210",
        "sequence_id": 117_309_440_000_000_001,
        "name": "openai.chat.completion",
        "kind": "llm_call",
        "status": "ok",
        "status_description": "fine",
        "started_at_us": 1_790_000_000_000_000,
        "ended_at_us": 1_790_000_000_100_000,
        "model": "policy",
        "resources_id": "rs-1",
        "resources_version": 4,
        "prompt_token_ids": pack_ids([3, 257, 70_000]),
        "response_token_ids": pack_ids([5, 1]),
        "response_logprobs": pack_floats([-0.25, -1.5]),
        "finish_reason": "stop",
        "ids_missing": None,
        "reward": 1.0,
        "request": '{"messages": []}',
        "response": '{"choices": []}',
        "payload_ref": BLOB,
        "attributes": '{"a": 1}',
        "events": "[{}]",
        "links": "[{}]",
        "resource": '{"attributes": {}}',
    },
    "ResourcesPublished": {
        **BASE,
        "resources_id": "rs-1",
        "version": 4,
        "resources": '{"llm": {"resource_type": "llm"}}',
        "weights": {"uri": "/data/v4", "sha256": "cd" * 32, "format": "safetensors"},
        "run_id": "run-1",
        "learner_id": "learner-1",
        "step": 4,
    },
    "WorkerHeartbeat": {
        **BASE,
        "worker_id": "runner-1",
        "worker_instance": "abc",
        "role": "runner",
        "status": "busy",
        "started_at_us": 1_790_000_000_000_000,
        "interval_seconds": 5.0,
        "slots_total": 8,
        "slots_free": 6,
        "partitions": [0, 3],
        "labels": ["gpu"],
        "attempts": [{"rollout_id": "ro-1", "attempt_id": "at-1"}],
        "resources_id": "rs-1",
        "resources_version": 4,
        "stats": '{"cpu_seconds": 1.5}',
    },
    "RolloutStateChanged": {
        **BASE,
        "rollout_id": "ro-1",
        "version": 7,
        "status": "failed",
        "reason_code": "agent_error",
        **TASK,
        "requested_at_us": 1_790_000_000_000_000,
        "ended_at_us": 1_790_000_009_000_000,
        "attempts": [
            {
                "attempt_id": "at-1",
                "attempt_number": 1,
                "status": "failed",
                "delivery": 1,
                "worker_id": "runner-1",
                "worker_instance": "abc",
                "dispatched_at_us": 1_790_000_000_000_001,
                "started_at_us": 1_790_000_000_000_002,
                "ended_at_us": 1_790_000_009_000_000,
                "reward": 0.0,
                "reason_code": "agent_error",
                "detail": "ValueError: no",
                "metadata": "{}",
            }
        ],
    },
    "TripletsJoined": {
        **BASE,
        **ATTEMPT,
        "revision": 1,
        "status": "succeeded",
        "reason_code": "no_reward",
        "detail": "none given",
        "mode": "train",
        "run_id": "run-1",
        "group_id": "gr-1",
        "group_size": 8,
        "resources_id": "rs-1",
        "resources_version": 4,
        "reward": 0.75,
        "triplets": [
            {
                "span_id": "0123456789abcdef",
                "sequence_id": 9,
                "prompt_token_ids": pack_ids([1, 2]),
                "response_token_ids": pack_ids([3]),
                "response_logprobs": pack_floats([-0.125]),
                "reward": 0.5,
                "resources_version": 4,
                "finish_reason": "stop",
                "metadata": "{}",
            }
        ],
        "adapter": "llm_calls",
        "adapter_version": "1",
        "spans_total": 3,
        "spans_partition": 5,
        "spans_first_offset": 10,
        "spans_last_offset": 12,
        "content_hash": "ef" * 32,
    },
    "BatchTrained": {
        **BASE,
        "learner_id": "learner-1",
        "step": 4,
        "run_id": "run-1",
        "rollouts": [
            {
                "rollout_id": "ro-1",
                "attempt_id": "at-1",
                "revision": 1,
                "group_id": "gr-1",
                "content_hash": "ef" * 32,
                "outcome": "dropped",
                "reason_code": "no_reward",
                "reward": None,
                "rows": 0,
            }
        ],
        "resources_id": "rs-1",
        "version_in": 3,
        "version_out": 4,
        "input_offsets": [{"topic": "triplets", "partition": 5, "next_offset": 13}],
        "rows": 250,
        "content_hash": "ab" * 32,
        "previous_hash": "cd" * 32,
        "manifest_hash": "ef" * 32,
        "adapter": "llm_calls",
        "metrics": '{"loss": 0.5}',
        "started_at_us": 1_790_000_000_000_000,
        "ended_at_us": 1_790_000_001_000_000,
    },
    "RecordRejected": {
        **BASE,
        "source_topic": "spans",
        "source_partition": 3,
        "source_offset": 77,
        "source_key": b"ro-1",
        "reason_code": "undecodable",
        "detail": "the body ends early",
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "payload": b"\x00\x01",
        "payload_length": 2,
        "rejected_by": "sink",
    },
}


def minimal(schema: dict[str, Any]) -> dict[str, Any]:
    """Only the fields without default, each with a plain value: what the leanest foreign writer sends."""
    plain = {"string": "x", "int": 1, "long": 1, "double": 1.0, "bytes": b""}

    def value(kind: Any) -> Any:
        if isinstance(kind, str):
            return plain[kind]
        if kind["type"] == "enum":
            return kind["symbols"][1]
        return [] if kind["type"] == "array" else {f["name"]: value(f["type"]) for f in kind["fields"]}

    return {f["name"]: value(f["type"]) for f in schema["fields"] if "default" not in f}
