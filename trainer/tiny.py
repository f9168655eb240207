"""The tiny model of the demo: two layers, 0.476 million weights, made here and not downloaded.

It answers sums of two digits, badly, in a protocol with a tool: to ``a+b=`` it says either a number or ``?``; after a
``?`` the agent's calculator says the sum in a tool message, and the model repeats it. A warm-up on noisy
demonstrations leaves the right behaviour as the most likely one and far from certain, which is the room that
reinforcement learning then closes. Same seed, same machine: same weights.

``python -m agl_stream.trainer.tiny OUT`` makes it; ``shipped_model()`` is one that was made so.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{'<|'+m.role+'|>'}}{{m.content}}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL_CALL = "?"
_PAD, _END = 0, 1


@dataclass(frozen=True)
class TinyConfig:
    """Size of the model and of its warm-up. The probabilities are those of the demonstrations: how often the tool is
    used, how often a direct answer is right, how often the tool's answer is copied rightly."""

    hidden: int = 128
    layers: int = 2
    steps: int = 300
    rows: int = 128
    learning_rate: float = 3e-3
    seed: int = 0
    tool_use: float = 0.3
    direct_right: float = 0.3
    copy_right: float = 0.7


def shipped_model() -> Path:
    """The folder with the ready model that comes with the package."""
    return Path(str(resources.files("agl_stream.trainer").joinpath("assets", "tool_model")))


def make_tokenizer() -> Any:
    """A byte-level tokenizer without merges: 256 bytes and a token for each role."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [],
        trainers.BpeTrainer(
            vocab_size=256 + len(SPECIAL_TOKENS),
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL_TOKENS[_PAD],
        eos_token=SPECIAL_TOKENS[_END],
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_model(config: TinyConfig, vocabulary: int) -> Any:
    """A Llama with untrained weights; the head is not tied to the embedding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=(vocabulary + 63) // 64 * 64,
            hidden_size=config.hidden,
            intermediate_size=config.hidden * 3,
            num_hidden_layers=config.layers,
            num_attention_heads=max(2, config.hidden // 32),
            num_key_value_heads=max(2, config.hidden // 64),
            max_position_embeddings=512,
            tie_word_embeddings=False,
            pad_token_id=_PAD,
            eos_token_id=_END,
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = _END
    model.generation_config.pad_token_id = _PAD
    return model


def demonstration(rng: random.Random, config: TinyConfig) -> list[tuple[str, str]]:
    """One noisy demonstration as (prompt, answer) rows in the chat template."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)

    def answer(right: float) -> str:
        return f"{a + b if rng.random() < right else rng.randint(0, 18)}<|end|>"

    question = f"<|user|>{a}+{b}=<|end|><|assistant|>"
    if rng.random() < config.tool_use:
        after_tool = f"{question}{TOOL_CALL}<|end|><|tool|>{a + b}<|end|><|assistant|>"
        return [(question, f"{TOOL_CALL}<|end|>"), (after_tool, answer(config.copy_right))]
    return [(question, answer(config.direct_right))]


def warm_up(model: Any, tokenizer: Any, config: TinyConfig) -> float:
    """Trains on demonstrations; the loss counts answers only. Returns the last loss."""
    import torch

    torch.set_num_threads(1)  # more threads add in another order, and the weights would depend on the machine
    rng = random.Random(config.seed)
    ids_of: dict[str, list[int]] = {}

    def encode(text: str) -> list[int]:
        if text not in ids_of:
            ids_of[text] = tokenizer.encode(text, add_special_tokens=False)
        return ids_of[text]

    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.learning_rate, total_steps=config.steps)
    last = float("nan")
    for _ in range(config.steps):
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < config.rows:
            rows += [(encode(prompt), encode(answer)) for prompt, answer in demonstration(rng, config)]
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for i, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[i, :end] = torch.tensor(prompt + answer)
            labels[i, len(prompt) : end] = torch.tensor(answer)
        # padding is on the right, where causal attention never looks: no mask is needed
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        wanted = labels[:, 1:]
        counted = wanted != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), wanted[counted])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        last = loss.item()
    return last


def make(out: str | Path, config: TinyConfig | None = None) -> float:
    """Makes model and tokenizer in ``out``; returns the last warm-up loss."""
    config = config or TinyConfig()
    tokenizer = make_tokenizer()
    model = make_model(config, len(tokenizer))
    loss = warm_up(model, tokenizer, config)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return loss


def main() -> None:
    """``python -m agl_stream.trainer.tiny OUT [--seed N] [--steps N]``."""
    defaults = TinyConfig()
    parser = argparse.ArgumentParser(description="Make the tiny tool-using model of the demo.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    arguments = parser.parse_args()
    loss = make(arguments.out, TinyConfig(seed=arguments.seed, steps=arguments.steps))
    print(f"{arguments.out} made, last warm-up loss {loss:.3f}")


if __name__ == "__main__":
    main()
