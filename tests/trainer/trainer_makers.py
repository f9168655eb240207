"""Makers of events and models for the trainer's tests."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.schemas.tokens import pack_floats, pack_ids
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

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
        "resources_version": None,
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


class PlainBackend:
    """A back end whose norm weights are a running sum over all it was ever trained on: for everything that is about
    which rows are trained, and not about how."""

    def __init__(self, model_dir: Path) -> None:
        from agl_stream.trainer.weights import load_tensors

        self._tensors = load_tensors(model_dir)
        self.sum = 0.0
        self.rows: list[int] = []

    def step(self, rows: Any, *, version_in: int | None = None) -> dict[str, float]:
        trained = sum(row.advantage * row.weight * sum(row.response_ids) for row in rows)
        self.sum = self.sum / 2 + trained
        self.rows.append(len(rows))
        return {"loss": 0.0, "max_logprob_diff": 0.0}

    def logprobs(self, rows: Any) -> Any:
        return [[0.0] * len(row.response_ids) for row in rows]

    def weights(self) -> dict[str, Any]:
        return {**self._tensors, "model.norm.weight": self._tensors["model.norm.weight"] * 0 + self.sum}

    def save(self, folder: Path) -> None:
        (folder / "sum").write_text(repr(self.sum))

    def load(self, folder: Path) -> None:
        self.sum = float((folder / "sum").read_text())


def make_topics(settings: Settings) -> None:
    """The catalogue's topics in the settings' namespace."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    wanted = [
        NewTopic(settings.topic(topic.name), topic.partitions or settings.partitions, 1, config=topic.config())
        for topic in TOPICS.values()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(30)
