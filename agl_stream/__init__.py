"""agl-stream: trains AI agents from what they do, with a Kafka log between the agents and the learner.

``import agl_stream as agl``. This is the public interface, on one screen; everything else may move. Names load
when they are first used, so that the import itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # agents
    from agl_stream.agents import LitAgent, llm_rollout, prompt_rollout, rollout

    # errors
    from agl_stream.errors import AglStreamError

    # what an agent says of itself while it runs
    from agl_stream.producers.emitters import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        operation,
    )

    # OpenTelemetry spans of an agent, recorded with its attempt
    from agl_stream.producers.otel import RolloutSpanExporter, RolloutSpanProcessor, attach

    # asking for rollouts
    from agl_stream.producers.task_producer import TaskProducer

    # settings
    from agl_stream.settings import Settings

    # what agents receive and queries answer
    from agl_stream.types import (
        LLM,
        Attempt,
        AttemptedRollout,
        EnqueueRolloutRequest,
        NamedResources,
        PromptTemplate,
        ProxyLLM,
        ResourcesUpdate,
        Rollout,
        RolloutConfig,
        Span,
        SpanCoreFields,
        Triplet,
    )

_HOME = {
    "agl_stream.agents": "LitAgent llm_rollout prompt_rollout rollout",
    "agl_stream.errors": "AglStreamError",
    "agl_stream.producers.emitters": ("emit_annotation emit_exception emit_message emit_object emit_reward operation"),
    "agl_stream.producers.otel": "RolloutSpanExporter RolloutSpanProcessor attach",
    "agl_stream.producers.task_producer": "TaskProducer",
    "agl_stream.settings": "Settings",
    "agl_stream.types": (
        "LLM Attempt AttemptedRollout EnqueueRolloutRequest NamedResources PromptTemplate ProxyLLM ResourcesUpdate "
        "Rollout RolloutConfig Span SpanCoreFields Triplet"
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "LLM",
    "AglStreamError",
    "Attempt",
    "AttemptedRollout",
    "EnqueueRolloutRequest",
    "LitAgent",
    "NamedResources",
    "PromptTemplate",
    "ProxyLLM",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutSpanExporter",
    "RolloutSpanProcessor",
    "Settings",
    "Span",
    "SpanCoreFields",
    "TaskProducer",
    "Triplet",
    "attach",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "rollout",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'agl_stream' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
