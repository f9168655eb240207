"""The demo's model: the recipe runs and repeats itself; the shipped one is what it says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_stream.trainer.sums import split
from agl_stream.trainer.tiny import TinyConfig, demonstration, make, make_model, make_tokenizer, shipped_model, warm_up
from agl_stream.trainer.weights import load_tensors

pytestmark = pytest.mark.train


def test_the_recipe_learns_and_repeats_itself(tmp_path: Path) -> None:
    config = TinyConfig(steps=12, rows=48)
    tokenizer = make_tokenizer()
    untrained = make_model(config, len(tokenizer))
    first_loss = warm_up(untrained, tokenizer, TinyConfig(steps=1, rows=48, learning_rate=0.0))
    losses = [make(tmp_path / name, config) for name in ("one", "two")]
    assert losses[0] == losses[1]
    assert losses[0] < first_loss - 1.0
    one, two = (load_tensors(tmp_path / name) for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_demonstrations_follow_the_protocol() -> None:
    rng, config = random.Random(1), TinyConfig()
    seen = [demonstration(rng, config) for _ in range(400)]
    with_tool = [rows for rows in seen if len(rows) == 2]
    assert 0.2 < len(with_tool) / len(seen) < 0.4
    for question, after_tool in with_tool:
        assert question[1] == "?<|end|>"
        assert after_tool[0].startswith(question[0] + "?<|end|><|tool|>")


def test_the_shipped_model_is_the_recipes_and_knows_its_protocol() -> None:
    folder = shipped_model()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    fresh = make_model(TinyConfig(), len(tokenizer))
    assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in fresh.state_dict().items()}
    assert sum(parameter.numel() for parameter in model.parameters()) == 475_776
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    right = asked = 0.0
    for task in split()[0][:20]:
        conversation = [{"role": "user", "content": task["question"]}]
        asked += probability(model, tokenizer, conversation, "?") / 20
        conversation += [{"role": "assistant", "content": "?"}, {"role": "tool", "content": task["answer"]}]
        right += probability(model, tokenizer, conversation, task["answer"]) / 20
    assert 0.15 < asked < 0.5, "it sometimes uses the tool"
    assert right > 0.5, "it mostly repeats what the tool says"


def probability(model: torch.nn.Module, tokenizer: object, messages: list[dict[str, str]], answer: str) -> float:
    """How likely the model gives ``answer`` to ``messages``."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]  # type: ignore[attr-defined]
    tokens = tokenizer.encode(answer + "<|end|>", add_special_tokens=False)  # type: ignore[attr-defined]
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    positions = range(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return float(sum(logprobs[p, t] for p, t in zip(positions, tokens, strict=True)).exp())  # type: ignore[union-attr]
