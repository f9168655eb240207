"""Two small agents of your own: one that needs no model, one that asks a model.

agl-stream runner examples/03_own_agent/agent.py:count_letters
agl-stream runner examples/03_own_agent/agent.py:ask_model
"""

from __future__ import annotations

import functools
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient

import agl_stream as agl


@agl.operation
def count(word: str, letter: str) -> int:
    """A tool; recorded with its arguments and result, because of the decorator."""
    return word.lower().count(letter.lower())


def count_letters(task: dict[str, Any]) -> float:
    """Counts by itself. A plain function is an agent; the number it returns is the reward."""
    found = count(task["word"], task["letter"])
    agl.emit_message(f"{task['word']} has {found} {task['letter']}")
    return 1.0 if found == task["answer"] else 0.0


@functools.cache
def client() -> AsyncOpenAI:
    """One client for the process; `with_options` gives it each attempt's address and key."""
    return AsyncOpenAI(api_key="none", base_url="http://unused", http_client=DefaultAioHttpClient())


async def ask_model(task: dict[str, Any], llm: agl.LLM) -> float:
    """Asks the model. Whoever asks for `llm` gets the address under which its calls are recorded."""
    question = f"How many times is the letter {task['letter']} in {task['word']}? Answer with a number."
    answer = (
        await client()
        .with_options(base_url=llm.base_url, api_key=llm.api_key or "none")
        .chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": question}], **llm.sampling_parameters
        )
    )
    return float((answer.choices[0].message.content or "").strip() == str(task["answer"]))
