"""Makers of events and models for the trainer's tests."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from agl_stream.schemas.tokens import pack_floats, pack_ids

Event = dict[str, Any]


def triplet(
    prompt: list[int], response: list[int], logprobs: list[float] | None = None, version: int | None = None
) -> Event:
    """One model call."""
    return {
        "span_id": "0" * 16,
        "sequence_id": 1,
        "prompt_token_ids": pack_ids(prompt),
        "response_token_ids": pack_ids(response),
        "response_logprobs": None if logprobs is None else pack_floats(logprobs),
        "reward": None,
        "resources_version": version,
        "finish_reason": "stop",
        "metadata": "{}",
    }


def joined(rollout_id: str, **fields: Any) -> Event:
    """A succeeded TripletsJoined with reward 1.0 and one short triplet, unless ``fields`` say otherwise."""
    event: Event = {
        "event_id": "",
        "occurred_at_us": 1_000_000,
        "rollout_id": rollout_id,
        "attempt_id": f"at-{rollout_id}",
        "attempt_number": 1,
        "revision": 0,
        "status": "succeeded",
        "reason_code": None,
        "detail": None,
        "mode": "train",
        "run_id": "run",
        "group_id": None,
        "group_size": None,
        "resources_id": "policy",
        "resources_version": 1,
        "reward": 1.0,
        "triplets": [triplet([7, 8, 9], [10, 1])],
        "adapter": "llm-calls",
        "adapter_version": "1",
        "spans_total": 1,
        "spans_partition": 0,
        "spans_first_offset": 0,
        "spans_last_offset": 0,
    }
    event.update(fields)
    parts = (event["reward"], event["status"], event["revision"], repr(event["triplets"]))
    event["content_hash"] = hashlib.sha256(repr(parts).encode()).hexdigest()
    return event


def group(group_id: str, size: int, **fields: Any) -> list[Event]:
    """All siblings of a group, with alternating rewards."""
    return [
        joined(f"{group_id}-{i}", group_id=group_id, group_size=size, reward=float(i % 2), **fields)
        for i in range(size)
    ]


def small_model(folder: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """An untrained model of hidden size 64, with tokenizer, in ``folder``."""
    from agl_stream.trainer.tiny import TinyConfig, make_model, make_tokenizer

    tokenizer = make_tokenizer()
    model = make_model(TinyConfig(hidden=64, seed=seed), len(tokenizer))
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_rows(seed: int, count: int = 12) -> list[Any]:
    """Rows of random tokens with advantages of both signs."""
    from agl_stream.trainer.batch import Row

    rng = random.Random(seed)
    return [
        Row(
            f"ro-{i}",
            [rng.randrange(6, 200) for _ in range(rng.randrange(3, 9))],
            [rng.randrange(6, 200) for _ in range(rng.randrange(1, 5))],
            None,
            None,
            rng.choice([-1.5, 0.0, 0.5, 1.0]),
            rng.choice([0.5, 1.0, 1.5]),
        )
        for i in range(count)
    ]
