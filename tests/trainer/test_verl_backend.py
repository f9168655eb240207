"""The verl back end on CPU: right gradients, right weights per rollout, exact resumption."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_makers import random_rows, small_model

from agl_stream.trainer.advantage import grpo_advantages
from agl_stream.trainer.batch import Row
from agl_stream.trainer.verl_backend import VerlBackend, VerlConfig, distinct_rows
from agl_stream.trainer.weights import load_tensors

pytestmark = pytest.mark.train

CONFIG = VerlConfig(learning_rate=1e-3, device="cpu")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> tuple[VerlBackend, Path]:
    """A back end, and a checkpoint of its beginning; one per process is what it is made for."""
    backend = VerlBackend(model_dir, CONFIG)
    folder = tmp_path_factory.mktemp("start") / "model"
    backend.save(folder)
    return backend, folder


@pytest.fixture
def backend(start: tuple[VerlBackend, Path]) -> VerlBackend:
    """The back end at its beginning."""
    start[0].load(start[1])
    return start[0]


@pytest.fixture
def rewind(start: tuple[VerlBackend, Path]) -> Callable[[], None]:
    """Takes the back end to its beginning again."""
    return lambda: start[0].load(start[1])


def reference_model(model_dir: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")


def reference_logprobs(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """One row alone, without padding, straight from the model."""
    logits = model(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0].log_softmax(-1)
    first = len(row.prompt_ids) - 1
    return logits[first : first + len(row.response_ids)].gather(-1, torch.tensor(row.response_ids)[:, None])[:, 0]


def test_logprobs_equal_the_models_own(backend: VerlBackend, model_dir: Path) -> None:
    rows, model = random_rows(1), reference_model(model_dir)
    for row, computed in zip(rows, backend.logprobs(rows), strict=True):
        assert computed.dtype == np.float32
        expected = reference_logprobs(model, row).detach().numpy()
        np.testing.assert_allclose(computed, expected, atol=2e-5)


def test_a_step_is_the_gradient_step_the_docstring_promises(backend: VerlBackend, model_dir: Path) -> None:
    """Mean over rows of weight x advantage x token mean of logprobs, clipped in norm, one AdamW step."""
    rows, model = random_rows(2), reference_model(model_dir)
    rows += [replace(row, advantage=-0.75, weight=0.5) for row in rows[:4]]  # the same tokens again
    terms = [row.weight * row.advantage * reference_logprobs(model, row).mean() for row in rows]
    (-torch.stack(terms).mean()).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.clip_grad))
    optimiser = torch.optim.AdamW(model.parameters(), lr=CONFIG.learning_rate, betas=CONFIG.betas, weight_decay=0.0)
    optimiser.step()
    metrics = backend.step(rows, version_in=1)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert metrics["computed_rows"] <= 12 < len(rows)
    expected, weights = model.state_dict(), backend.weights()
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        # Adam divides by the gradient's size, so elements without gradient are left to rounding
        difference = (tensor - expected[name]).abs()
        assert float(difference.mean()) < 2e-5, name


def test_a_step_makes_good_rows_likelier_and_does_not_depend_on_the_micro_batch(
    start: tuple[VerlBackend, Path], backend: VerlBackend, model_dir: Path
) -> None:
    rows = random_rows(3, 24)
    before = backend.logprobs(rows)
    backend.step(rows, version_in=1)
    after, whole = backend.logprobs(rows), backend.weights()
    gain = sum(r.weight * r.advantage * float((b - a).mean()) for r, a, b in zip(rows, before, after, strict=True))
    assert gain > 0
    small = VerlBackend(model_dir, replace(CONFIG, max_tokens_per_pass=64))
    small.load(start[1])
    small.step(rows, version_in=1)
    for name, tensor in small.weights().items():
        assert float((tensor - whole[name]).abs().mean()) < 2e-5, name


def test_rows_of_an_older_version_are_weighted_by_truncated_importance(
    backend: VerlBackend, rewind: Callable[[], None]
) -> None:
    """A response the old version found twice as likely counts half; one it found far less likely is capped."""
    row = random_rows(4, 1)[0]
    row = replace(row, advantage=1.0, weight=1.0)
    current = backend.logprobs([row])[0]
    norms = {}
    for name, shift in {"same": 0.0, "likelier": np.log(2.0), "rarer": -5.0}.items():
        reported = [float(value + shift) for value in current]
        stale = replace(row, logprobs=reported, version=1)
        metrics = backend.step([stale], version_in=2)
        norms[name] = metrics["actor/pg_loss"]
        assert metrics["stale_rows"] == 1.0
        assert metrics["max_logprob_diff"] == 0.0, "old versions say nothing about the server"
        rewind()
    assert norms["likelier"] == pytest.approx(norms["same"] / 2, rel=1e-3)
    assert norms["rarer"] == pytest.approx(norms["same"] * CONFIG.importance_cap, rel=1e-3)


def test_the_distance_to_reported_logprobs_is_measured(backend: VerlBackend, rewind: Callable[[], None]) -> None:
    row = replace(random_rows(5, 1)[0], advantage=1.0)
    reported = [float(value) for value in backend.logprobs([row])[0]]
    exact = replace(row, logprobs=reported, version=1)
    off = replace(row, logprobs=[value + 0.25 for value in reported], version=1)
    silent = replace(random_rows(6, 1)[0], advantage=1.0, logprobs=None)
    assert backend.step([exact, silent], version_in=1)["max_logprob_diff"] < 1e-5
    rewind()
    assert backend.step([off, silent], version_in=1)["max_logprob_diff"] == pytest.approx(0.25, abs=1e-4)


def test_two_steps_a_save_a_load_elsewhere_and_a_third_equal_three_in_a_row(
    backend: VerlBackend, model_dir: Path, tmp_path: Path
) -> None:
    batches = [random_rows(seed) for seed in (10, 11, 12)]
    for number, rows in enumerate(batches):
        if number == 2:
            backend.save(tmp_path / "checkpoint")
        backend.step(rows, version_in=number)
    straight = backend.weights()
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from safetensors.torch import save_file
from trainer_makers import random_rows
from agl_stream.trainer.verl_backend import VerlBackend, VerlConfig
backend = VerlBackend(sys.argv[2], VerlConfig(learning_rate=1e-3, device="cpu"))
backend.load(sys.argv[3])
backend.step(random_rows(12), version_in=2)
save_file(backend.weights(), sys.argv[4])
"""
    out = tmp_path / "out"
    out.mkdir()
    here = str(Path(__file__).parent)
    subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            here,
            str(model_dir),
            str(tmp_path / "checkpoint"),
            str(out / "model.safetensors"),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    for name, tensor in load_tensors(out).items():
        assert float((tensor - straight[name]).abs().max()) < 1e-6, name


def test_a_tied_model_trains_and_publishes_one_tensor_for_both(tmp_path: Path) -> None:
    backend = VerlBackend(small_model(tmp_path / "tied", tied=True), CONFIG)
    before = backend.weights()["model.embed_tokens.weight"]
    backend.step(random_rows(6), version_in=1)
    after = backend.weights()
    assert not torch.equal(before, after["model.embed_tokens.weight"])
    if "lm_head.weight" in after:
        assert torch.equal(after["lm_head.weight"], after["model.embed_tokens.weight"])


def test_only_rows_with_a_gradient_are_computed_and_equal_ones_once() -> None:
    row = Row("a", [5], [6, 7], [-1.0, -2.0], 1, advantage=0.5, weight=2.0)
    twin = replace(row, rollout_id="b", logprobs=[-1.1, -2.0], advantage=-0.25)
    other = replace(row, response_ids=[6, 8], advantage=1.0)
    idle = replace(row, response_ids=[9, 9], advantage=0.0)
    assert [(r.response_ids, r.advantage) for r in distinct_rows([row, twin, other, idle], 1)] == [
        ([6, 7], 0.5),
        ([6, 8], 2.0),
    ]
    stale = distinct_rows([row, twin, row], version_in=2)
    assert [r.advantage for r in stale] == [2.0, -0.5], "stale twins have importance weights of their own"
    assert len(distinct_rows([idle, idle], 1)) == 1


def test_advantages_are_group_relative() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 1.0, 5.0], [0, 0, 0, 1, 1, 2]
    advantages = grpo_advantages(rewards, groups)
    first = np.array([1.0, 0.0, 0.0])
    expected = (first - first.mean()) / (first.std(ddof=1) + 1e-6)
    assert advantages[:3] == pytest.approx(expected.tolist(), abs=1e-5)
    assert advantages[3:5] == [0.0, 0.0]
    assert advantages[5] == pytest.approx(5.0, abs=1e-4), "alone there is no baseline"
    assert grpo_advantages([1.0, 0.0], ["a", "a"], by_std=False) == [0.5, -0.5]  # type: ignore[list-item]
