"""The example agents with a real OpenAI client against a server that plays the tiny model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agl_stream.types import LLM

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server:
    """Answers from a list; fails as often as told first."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[str] = []
        self.keys: list[str] = []
        self.failures = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        if self.failures:
            self.failures -= 1
            return web.Response(status=503)
        self.requests.append((request.path, await request.json()))
        self.keys.append(request.headers.get("Authorization", ""))
        message = {"role": "assistant", "content": self.answers.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
        )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "reward"), [(["7"], 1.0), (["8"], 0.0), (["?", "7"], 1.0), (["?", "?"], 0.0), (["", "7"], 0.0)]
)
async def test_the_calculator_agent_follows_its_protocol(server: Server, answers: list[str], reward: float) -> None:
    module = example("01_tool_agent")
    server.answers = list(answers)
    server.failures = 1
    bound = f"{server.url}/rollout/ro-1/attempt/at-1/v1"
    llm = LLM(endpoint=bound, model="policy", api_key="mine", sampling_parameters={"temperature": 0.5})
    assert await module.calculator_agent({"question": "3+4=", "answer": "7"}, llm) == reward
    await module.client().close()
    assert set(server.keys) == {"Bearer mine"}
    path, first = server.requests[0]
    assert path == "/rollout/ro-1/attempt/at-1/v1/chat/completions"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("policy", 0.5, 4)
    assert first["messages"] == [{"role": "user", "content": "3+4="}]
    if answers[0] == "?":
        assert server.requests[1][1]["messages"][1:] == [
            {"role": "assistant", "content": "?"},
            {"role": "tool", "content": "7"},
        ]


async def test_the_own_agents(server: Server) -> None:
    module = example("03_own_agent")
    lines = [json.loads(line) for line in (EXAMPLES / "03_own_agent" / "tasks.jsonl").read_text().splitlines()]
    tasks = [line.get("input", line) for line in lines]
    assert [module.count_letters(task) for task in tasks[:-1]] == [1.0, 1.0, 1.0, 1.0]
    with pytest.raises(KeyError, match="answer"):
        module.count_letters(tasks[-1])
    server.answers = [" 3\n", "4"]
    llms = [LLM(endpoint=server.url + "/v1", model="m"), LLM(endpoint=server.url + "/v1", model="m", api_key="mine")]
    assert [await module.ask_model(tasks[0], llm) for llm in llms] == [1.0, 0.0]
    assert server.keys == ["Bearer none", "Bearer mine"]
    await module.client().close()
