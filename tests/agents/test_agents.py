"""Functions and classes as agents: what each signature receives, and what cannot be one."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest

from agl_stream.agents import FunctionAgent, LitAgent, as_agent, llm_rollout, prompt_rollout, rollout
from agl_stream.types import LLM, Attempt, AttemptedRollout, PromptTemplate, ProxyLLM

ROLLOUT = AttemptedRollout(
    rollout_id="ro-1",
    input={"q": 1},
    start_time=1.0,
    mode="train",
    attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=2.0),
)
RESOURCES: dict[str, Any] = {
    "policy": ProxyLLM(endpoint="http://gate/v1", model="policy", sampling_parameters={"temperature": 1.0}),
    "greeting": PromptTemplate(template="Hello {name}"),
}
BOUND = "http://gate/rollout/ro-1/attempt/at-1/v1"


def run(agent: LitAgent, mode: str | None = "train", resources: dict[str, Any] = RESOURCES) -> Any:
    result = agent.method_for(mode)("task", resources=resources, rollout=ROLLOUT)
    return asyncio.run(result) if agent.is_async() else result


def f_task(task):
    return task


def f_any_first_name(question):
    return question


def f_resources(task, resources):
    return sorted(resources)


def f_rollout(task, rollout):
    return rollout.attempt.attempt_id


def f_resources_rollout(task, resources, rollout):
    return len(resources), rollout.rollout_id


def f_llm(task, llm):
    return llm.resource_type, llm.get_base_url(), llm.model


def f_llm_rollout(task, llm, rollout):
    return llm.endpoint, rollout.mode


def f_prompt(task, prompt_template):
    return prompt_template.format(name=task)


def f_prompt_rollout(task, prompt_template, rollout):
    return prompt_template.format(name=rollout.rollout_id)


def f_all(task, *, resources, rollout, llm, prompt_template, temperature=0.5, **rest):
    return len(resources), rollout.rollout_id, llm.model, prompt_template.engine, temperature, rest


TABLE = [
    (f_task, "task"),
    (f_any_first_name, "task"),
    (f_resources, ["greeting", "policy"]),
    (f_rollout, "at-1"),
    (f_resources_rollout, (2, "ro-1")),
    (f_llm, ("llm", BOUND, "policy")),
    (f_llm_rollout, (BOUND, "train")),
    (f_prompt, "Hello task"),
    (f_prompt_rollout, "Hello ro-1"),
    (f_all, (2, "ro-1", "policy", "f-string", 0.5, {})),
]


def as_coroutine_function(function):
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize(("function", "expected"), TABLE, ids=[f.__name__ for f, _ in TABLE])
@pytest.mark.parametrize("decorate", [as_agent, rollout, rollout()], ids=["plain", "bare", "called"])
@pytest.mark.parametrize("make_async", [False, True], ids=["sync", "async"])
def test_signature_receives(function: Any, expected: Any, decorate: Any, make_async: bool) -> None:
    agent = decorate(as_coroutine_function(function) if make_async else function)
    assert agent.is_async() is make_async
    assert run(agent) == expected
    assert agent.__name__ == function.__name__


def test_decorated_functions_stay_callable() -> None:
    @rollout
    def double(task: int) -> int:
        return 2 * task

    assert double(4) == 8


def test_llm_rollout_may_keep_the_proxy() -> None:
    @llm_rollout(strip_proxy=False)
    def agent(task: str, llm: LLM) -> Any:
        return llm.resource_type, llm.get_base_url("ro-9", "at-9")

    assert run(agent) == ("proxy_llm", "http://gate/rollout/ro-9/attempt/at-9/v1")
    assert run(llm_rollout(f_llm)) == ("llm", BOUND, "policy")
    assert run(prompt_rollout(f_prompt)) == "Hello task"


def test_the_decorator_checks_its_parameter() -> None:
    with pytest.raises(ValueError, match="'llm'"):
        llm_rollout(f_task)
    with pytest.raises(ValueError, match="'prompt_template'"):
        prompt_rollout(f_llm)


def _no_parameters() -> None: ...
def _unknown_parameter(task: str, database: str) -> None: ...
def _positional_only(task: str, llm: LLM, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"), [(_no_parameters, "no task"), (_unknown_parameter, "database"), (_positional_only, "llm")]
)
def test_signatures_that_cannot_be_served(function: Any, named: str) -> None:
    with pytest.raises(NotImplementedError, match=named):
        rollout(function)


def test_missing_and_several_resources(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"LLM.*greeting"):
        run(rollout(f_llm), resources={"greeting": RESOURCES["greeting"]})
    with pytest.raises(ValueError, match=r"PromptTemplate.*empty"):
        run(rollout(f_prompt), resources={})
    two = {"a": LLM(endpoint="http://a", model="first"), "b": LLM(endpoint="http://b", model="second")}
    with caplog.at_level(logging.WARNING):
        assert run(rollout(f_llm), resources=two) == ("llm", "http://a", "first")
    assert "'a' is used" in caplog.text


def test_the_wrong_variant_says_so() -> None:
    with pytest.raises(RuntimeError, match="call rollout"):
        asyncio.run(FunctionAgent(f_task).rollout_async("t", {}, ROLLOUT))
    with pytest.raises(RuntimeError, match="call rollout_async"):
        FunctionAgent(as_coroutine_function(f_task)).rollout("t", {}, ROLLOUT)


def test_callable_objects_and_partials_are_agents() -> None:
    class Judge:
        async def __call__(self, task: str) -> str:
            return task

    def scaled(task: str, factor: int = 1) -> str:
        return task * factor

    assert run(as_agent(Judge())) == "task"
    assert run(as_agent(functools.partial(scaled, factor=2))) == "tasktask"


class SyncAgent(LitAgent):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "validation"

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "training"


class AsyncAgent(LitAgent):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "rollout"

    async def validation_rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "validation"


@pytest.mark.parametrize(
    ("agent", "mode", "called"),
    [
        (SyncAgent(), "train", "training"),
        (SyncAgent(), "val", "validation"),
        (SyncAgent(), None, "validation"),
        (AsyncAgent(), "train", "rollout"),
        (AsyncAgent(), "test", "validation"),
        (as_agent(AsyncAgent), "train", "rollout"),
    ],
)
def test_the_mode_chooses_the_method(agent: LitAgent, mode: str | None, called: str) -> None:
    assert run(agent, mode) == called


def test_an_agent_that_overrides_nothing_says_so() -> None:
    with pytest.raises(NotImplementedError, match="LitAgent overrides"):
        run(LitAgent())


@pytest.mark.parametrize("candidate", [3, "agent", None, dict, object()])
def test_what_is_no_agent(candidate: Any) -> None:
    with pytest.raises(TypeError, match="no agent"):
        as_agent(candidate)
