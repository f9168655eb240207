"""The agent under load: one recorded model call, a little work, a reward that its task names."""

from __future__ import annotations

import asyncio
from typing import Any

from agl_stream.demo.agent import client


async def scripted(task: dict[str, Any], llm: Any) -> float:
    """Takes ``task["seconds"]`` besides the call; the reward is ``task["reward"]``."""
    chat = client().with_options(base_url=llm.base_url, api_key="none").chat.completions
    await chat.create(model=llm.model, messages=[{"role": "user", "content": task["name"]}])
    await asyncio.sleep(task["seconds"])
    return task["reward"]
