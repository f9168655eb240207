"""The server: its answers are the model's, each from one version, whatever is swapped, streamed or broken off."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from trainer_makers import small_model

from agl_stream.errors import UsageError
from agl_stream.trainer.server.app import VERSION_HEADER, make_app
from agl_stream.trainer.server.config import EngineConfig
from agl_stream.trainer.server.engine import Engine
from agl_stream.trainer.weights import WeightsFolder, WeightsUnusable, load_tensors, verify

pytestmark = pytest.mark.train

CHAT = "/v1/chat/completions"
Client = TestClient[Any, Any]


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[Engine]:
    made = Engine(model_dir, EngineConfig(device="cpu", drain_seconds=5.0, cache_tokens=2048))
    yield made
    made.close()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[Client]:
    async with TestClient(TestServer(make_app(engine, model="policy"))) as made:
        yield made


def body(text: str = "1+2=", **fields: Any) -> dict[str, Any]:
    return {
        "model": "policy",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "logprobs": True,
        "return_token_ids": True,
        **fields,
    }


async def ask(client: Client, text: str = "1+2=", **fields: Any) -> dict[str, Any]:
    response = await client.post(CHAT, json=body(text, **fields))
    answer = await response.json()
    assert response.status == 200, answer
    assert response.headers[VERSION_HEADER] == str(answer["resources_version"])
    return answer


def distance(answer: dict[str, Any], model: torch.nn.Module) -> float:
    """Largest distance between the logprobs of an answer and those of a model."""
    worst = 0.0
    for choice in answer["choices"]:
        prompt, tokens = answer["prompt_token_ids"], choice["token_ids"]
        reported = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert len(reported) == len(tokens) > 0
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
        for position, (token, logprob) in enumerate(zip(tokens, reported, strict=True), start=len(prompt) - 1):
            worst = max(worst, abs(float(logprobs[position, token]) - logprob))
    return worst


def reference(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def other_weights(tmp_path: Path, seed: int = 5) -> tuple[dict[str, torch.Tensor], torch.nn.Module]:
    folder = small_model(tmp_path / f"other-{seed}", seed=seed)
    return load_tensors(folder), reference(folder)


async def test_an_answer_has_ids_text_and_the_models_logprobs(client: Client, engine: Engine, model_dir: Path) -> None:
    answer = await ask(client, n=3)
    assert answer["object"] == "chat.completion"
    assert answer["prompt_token_ids"] == engine.prompt_ids([{"role": "user", "content": "1+2="}])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    generated = sum(len(choice["token_ids"]) for choice in answer["choices"])
    prompt = len(answer["prompt_token_ids"])
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    for choice in answer["choices"]:
        assert choice["message"]["content"] == engine.text_of(choice["token_ids"])
        ended = choice["token_ids"][-1] == engine.tokenizer.eos_token_id
        assert choice["finish_reason"] == ("stop" if ended else "length")
    assert distance(answer, reference(model_dir)) < 1e-4


async def test_ids_and_logprobs_only_when_asked_for(client: Client) -> None:
    response = await client.post(CHAT, json={"messages": [{"role": "user", "content": "1"}], "max_tokens": 2})
    answer = await response.json()
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None


async def test_temperature_is_per_request(client: Client) -> None:
    greedy = [await ask(client, temperature=0) for _ in range(3)]
    warm = await asyncio.gather(*(ask(client, temperature=1.5) for _ in range(6)), ask(client, temperature=0))
    expected = greedy[0]["choices"][0]["token_ids"]
    assert all(answer["choices"][0]["token_ids"] == expected for answer in [*greedy, warm[-1]])
    assert len({tuple(answer["choices"][0]["token_ids"]) for answer in warm[:-1]}) > 1


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    lines = (await response.text()).split("\n\n")
    return [line.removeprefix("data: ") for line in lines if line]


async def test_a_stream_adds_up_to_an_answer(client: Client, engine: Engine, model_dir: Path) -> None:
    response = await client.post(CHAT, json=body(n=2, stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"].startswith("text/event-stream")
    raw = await events(response)
    assert raw[-1] == "[DONE]"
    chunks = [json.loads(line) for line in raw[:-1]]
    assert {chunk["resources_version"] for chunk in chunks} == {0}
    assert len({chunk["id"] for chunk in chunks}) == 1
    usage = chunks.pop()
    answer: dict[str, Any] = {"prompt_token_ids": chunks[0]["prompt_token_ids"], "choices": []}
    for index in range(2):
        pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        assert [piece["finish_reason"] is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
        tokens = [token for piece in pieces for token in piece["token_ids"]]
        logprobs = [entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]]
        assert "".join(piece["delta"]["content"] for piece in pieces) == engine.text_of(tokens)
        answer["choices"].append({"token_ids": tokens, "logprobs": {"content": logprobs}})
    assert distance(answer, reference(model_dir)) < 1e-4
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in answer["choices"])


BAD_REQUESTS = {
    "no JSON": (b"not json", 400, None),
    "nested too deep": (b"[" * 100_000, 400, None),
    "unsupported": (json.dumps(body(top_p=0.5)).encode(), 400, None),
    "another model": (json.dumps(body(model="gpt")).encode(), 404, "model_not_found"),
    "long prompt": (json.dumps(body("9" * 600)).encode(), 400, "context_length_exceeded"),
    "long answer": (json.dumps(body(max_tokens=100_000)).encode(), 400, "context_length_exceeded"),
    "huge": (b'"' + b"x" * (9 * 1024 * 1024) + b'"', 413, None),
}


async def test_bad_requests_get_openais_error_object_and_harm_nobody(client: Client) -> None:
    for name, (sent, status, code) in BAD_REQUESTS.items():
        response = await client.post(CHAT, data=sent)
        assert response.status == status, name
        error = (await response.json())["error"]
        assert error["code"] == code, name
        assert error["message"] and "Traceback" not in error["message"], name
    await ask(client)


async def test_unknown_paths_and_health_and_models(client: Client) -> None:
    missing = await client.get("/v1/nothing")
    assert (missing.status, "error" in await missing.json()) == (404, True)
    health = await client.get("/health")
    assert await health.json() == {"status": "ok", "model": "policy", "resources_version": 0, "in_flight": 0}
    models = await (await client.get("/v1/models")).json()
    assert models["data"][0]["id"] == "policy"


async def test_every_answer_under_swaps_comes_from_the_version_it_names(
    client: Client, engine: Engine, model_dir: Path, tmp_path: Path
) -> None:
    base, (tensors, other) = reference(model_dir), other_weights(tmp_path)
    by_version = {0: base} | {version: other if version % 2 else base for version in range(1, 7)}
    own = load_tensors(model_dir)
    answers: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def keep_asking(number: int) -> None:
        while not done.is_set():
            answers.append(await ask(client, f"{number}+2=", n=2))

    askers = [asyncio.create_task(keep_asking(number)) for number in range(6)]
    for version in range(1, 7):
        await asyncio.sleep(0.05)
        await engine.swap(version, tensors if version % 2 else own)
    answers.append(await ask(client))
    done.set()
    await asyncio.gather(*askers)
    assert len({answer["resources_version"] for answer in answers}) >= 4
    for answer in answers:
        assert distance(answer, by_version[answer["resources_version"]]) < 1e-4
    assert answers[-1]["resources_version"] == 6


async def test_weights_that_do_not_fit_are_refused_untouched(client: Client, engine: Engine, model_dir: Path) -> None:
    tensors = load_tensors(model_dir)
    missing = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    with pytest.raises(WeightsUnusable, match="lm_head"):
        await engine.swap(1, missing)
    with pytest.raises(WeightsUnusable, match="has shape"):
        await engine.swap(1, {**tensors, "lm_head.weight": tensors["lm_head.weight"][:-1]})
    answer = await ask(client)
    assert answer["resources_version"] == 0
    assert distance(answer, reference(model_dir)) < 1e-4


async def test_a_base_model_with_a_tied_head_serves_new_versions_rightly(tmp_path: Path) -> None:
    tied = small_model(tmp_path / "tied", tied=True)
    tensors, other = other_weights(tmp_path, seed=9)
    published = verify(WeightsFolder(tmp_path / "weights").write(1, tensors, tied))
    engine = Engine(tied, EngineConfig(device="cpu"))
    try:
        async with TestClient(TestServer(make_app(engine, model="policy"))) as client:
            assert distance(await ask(client), reference(tied)) < 1e-4
            await engine.swap(1, load_tensors(published))
            assert distance(await ask(client), other) < 1e-4
    finally:
        engine.close()


async def test_a_caller_who_leaves_frees_its_place(engine: Engine) -> None:
    prompt = engine.prompt_ids([{"role": "user", "content": "1+2="}])
    async with engine.admitted():
        generation = engine.generate(prompt, max_tokens=400, temperature=1.5, streaming=True)
        await anext(generation)
        await generation.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        await engine.swap(1, {name: t.clone() for name, t in engine.model.state_dict().items()})
    assert engine.version == 1


async def test_a_swap_cancels_what_does_not_end_in_time(model_dir: Path, tmp_path: Path) -> None:
    never_ending = tmp_path / "never-ending"
    shutil.copytree(model_dir, never_ending)
    (never_ending / "generation_config.json").write_text('{"eos_token_id": 5000}')  # beyond the vocabulary
    engine = Engine(never_ending, EngineConfig(device="cpu", drain_seconds=0.05))
    try:
        async with TestClient(TestServer(make_app(engine, model="policy"))) as client:
            plain = asyncio.create_task(client.post(CHAT, json=body(max_tokens=480)))
            streamed = await client.post(CHAT, json=body(max_tokens=480, stream=True))
            for _ in range(500):
                if engine.in_flight == 2:
                    break
                await asyncio.sleep(0.01)
            await engine.swap(2, load_tensors(model_dir))
            refused = await plain
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "unavailable"
            last = (await events(streamed))[-1]
            assert "cancelled for a new model version" in json.loads(last)["error"]["message"]
            assert (await ask(client, max_tokens=2))["resources_version"] == 2
    finally:
        engine.close()


async def test_too_many_requests_are_refused_at_once(model_dir: Path) -> None:
    engine = Engine(model_dir, EngineConfig(device="cpu", max_in_flight=2))
    try:
        async with TestClient(TestServer(make_app(engine, model="policy"))) as client:
            async with engine.admitted(), engine.admitted():
                response = await client.post(CHAT, json=body())
                assert response.status == 503
                assert response.headers["retry-after"]
            await ask(client)
    finally:
        engine.close()


async def test_a_key_is_asked_for_where_one_is_set(engine: Engine) -> None:
    async with TestClient(TestServer(make_app(engine, model="policy", api_key="secret"))) as client:
        assert (await client.post(CHAT, json=body())).status == 401
        assert (await client.get("/health")).status == 200
        headers = {"authorization": "Bearer secret"}
        assert (await client.post(CHAT, json=body(), headers=headers)).status == 200


async def test_a_dead_generation_thread_shows_in_health(client: Client, engine: Engine) -> None:
    engine._manager.stop(block=True, timeout=10.0, hard_stop=True)
    assert (await client.get("/health")).status == 503
    response = await client.post(CHAT, json=body())
    assert response.status == 500
    assert "must be restarted" in (await response.json())["error"]["message"]


def test_a_folder_without_a_model_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be loaded"):
        Engine(tmp_path)
