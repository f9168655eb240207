"""A tool-using agent: asked for a sum, the model answers with a number, or with "?" to use the calculator.

Ordinary OpenAI client code. It knows the address it is given (`llm.base_url`) and nothing of Kafka, rollouts or
training: the gateway behind that address records the calls, the returned number is the reward.
"""

from __future__ import annotations

import functools
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient

CALCULATOR = "?"


@functools.cache
def client() -> AsyncOpenAI:
    """One client, and so one pool of connections, for the process: making one takes longer than ten calls.

    aiohttp as its transport halves the CPU time of a call. Retries ride out a restart of whatever is behind it.
    """
    return AsyncOpenAI(api_key="none", base_url="http://unused", max_retries=5, http_client=DefaultAioHttpClient())


def calculator(sum_of_two: str) -> str:
    """The tool: "3+4=" gives "7"."""
    left, _, right = sum_of_two.rstrip("=").partition("+")
    return str(int(left) + int(right))


async def calculator_agent(task: dict[str, str], llm: Any) -> float:
    """Reward 1.0 if the model's last word is the right answer, else 0.0."""
    chat = client().with_options(base_url=llm.base_url, api_key=llm.api_key or "none").chat.completions
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 4, **llm.sampling_parameters}
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    said = await _say(chat, llm.model, messages, sampling)
    if said == CALCULATOR:
        messages += [
            {"role": "assistant", "content": said},
            {"role": "tool", "content": calculator(task["question"])},
        ]
        said = await _say(chat, llm.model, messages, sampling)
    return float(said == task["answer"])


async def _say(chat: Any, model: str, messages: list[Any], sampling: dict[str, Any]) -> str:
    completion = await chat.create(model=model, messages=messages, **sampling)
    return completion.choices[0].message.content or ""
