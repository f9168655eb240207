"""Spans and triplets as lines of JSON, token ids as numbers."""

from __future__ import annotations

import json
from array import array

import pytest

from .conftest import NOW_US, Scene, wait_for

pytestmark = pytest.mark.engines


def span(number: int) -> dict[str, object]:
    return {
        "rollout_id": f"ro-{number}",
        "attempt_id": f"at-{number}",
        "span_id": f"{number:016x}",
        "trace_id": f"{number:032x}",
        "sequence_id": number,
        "name": "chat",
        "kind": "llm_call",
        "started_at_us": NOW_US,
        "prompt_token_ids": array("i", [1, 2, -3]).tobytes(),
        "response_logprobs": array("f", [-0.5, float("nan")]).tobytes(),
        "reward": float("inf"),
        "request": '{"text": "two\\nlines\u2028"}',
    }


def test_spans_become_lines_of_json(scene: Scene) -> None:
    scene.apply("spans-jsonl")
    for number in range(50):
        scene.produce("spans", "SpanRecorded", span(number), partition=number % 2)
    scene.produce_raw("spans", b"poison")
    scene.produce_raw("spans", None, "tombstone")
    scene.produce("spans", "SpanRecorded", span(50))
    path = scene.folder / "exports" / "spans.jsonl"
    wait_for(lambda: path.exists() and path.read_text().count("\n") == 51, "51 lines")
    lines = {line["span_id"]: line for line in map(json.loads, path.read_text().split("\n")[:-1])}
    assert len(lines) == 51
    line = lines[f"{7:016x}"]
    assert (line["prompt_token_ids"], line["response_logprobs"], line["reward"]) == ([1, 2, -3], [-0.5, None], None)
    assert (line["kind"], line["model"], line["producer"]["name"]) == ("llm_call", None, "")
    assert line["request"] == span(7)["request"]
    assert scene.count("dead-letters.spans-jsonl") == 1
