"""What an agent is: a function, a decorated function or a LitAgent; nothing here knows of Kafka."""

from __future__ import annotations

from agl_stream.agents.decorators import llm_rollout, prompt_rollout, rollout
from agl_stream.agents.function_agent import FunctionAgent, as_agent
from agl_stream.agents.lit_agent import LitAgent

__all__ = ["FunctionAgent", "LitAgent", "as_agent", "llm_rollout", "prompt_rollout", "rollout"]
