"""The training back end: one verl TrainingWorker behind four verbs (logprobs, step, weights, save/load).

The same code trains on CPU (gloo, through ``verl_cpu``) and on an NVIDIA GPU (NCCL); only the platform, the
attention implementation and the dtype differ. Importing this module imports torch; making a ``VerlBackend`` imports
verl, which takes some seconds.
"""

from __future__ import annotations

import io
import logging
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agl_stream.trainer.batch import Row
from agl_stream.trainer.verl_cpu import choose_platform, register_engine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerlConfig:
    """How a step updates the model.

    ``device``: auto, cpu or cuda. ``dtype`` of parameters and gradients (fp32, bf16). ``max_tokens_per_pass`` bounds
    a micro batch, padding included; the loss does not depend on it. ``importance_cap`` truncates the importance
    weight of responses made by an older version, token by token.
    ``threads``: torch threads on CPU; one is fastest for toy models and beside other busy processes.
    """

    learning_rate: float = 5e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip_ratio: float = 0.2
    clip_grad: float = 1.0
    importance_cap: float = 2.0
    device: str = "auto"
    dtype: str = "fp32"
    attention: str = "sdpa"
    remove_padding: bool = False
    max_tokens_per_pass: int = 16_384
    seed: int = 0
    threads: int = 1


class VerlBackend:
    """A model that learns. One per process: verl keeps its platform and process group in globals.

    Rows are the batch's rows: prompt and response token ids. All verbs block until the device is done.
    """

    def __init__(self, model_dir: str | Path, config: VerlConfig | None = None) -> None:
        """Loads the model at ``model_dir`` (Hugging Face layout) and an optimiser with fresh state."""
        self.config = config or VerlConfig()
        self.model_dir = Path(model_dir)
        device = choose_platform(self.config.device)
        if device == "cpu":
            torch.set_num_threads(self.config.threads)
        _join_process_group("gloo" if device == "cpu" else "nccl")
        random.seed(self.config.seed)
        np.random.seed(self.config.seed)
        torch.manual_seed(self.config.seed)
        with _quiet():
            if device == "cpu":
                register_engine()
            self._worker = _make_worker(self.model_dir, self.config)

    def logprobs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Log-probability of each response token under the current weights; one float32 array a row."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

        data = left_right_2_no_padding(self._to_padded(rows))
        tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, temperature=1.0)
        values = no_padding_2_padding(self._worker.infer_batch(data)["log_probs"], data).float()
        return [values[i, : len(row.response_ids)].numpy() for i, row in enumerate(rows)]

    def step(self, rows: Sequence[Row], *, version_in: int | None = None) -> dict[str, float]:
        """One optimiser step on ``rows``; returns verl's metrics and ours (see ``policy_loss``).

        Rows without gradient and repetitions of a row count in the mean and are not computed (see ``distinct_rows``).
        """
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import left_right_2_no_padding

        computed = distinct_rows(rows, version_in)
        data = self._to_padded(computed)
        mask = data["response_mask"].float()
        advantages = torch.tensor([row.advantage for row in computed], dtype=torch.float32)
        data["advantages"] = advantages.unsqueeze(1) * mask
        data["rollout_log_probs"], data["rollout_log_probs_known"] = _reported_logprobs(computed, mask.shape[1])
        stale = torch.tensor([row.version is not None and row.version != version_in for row in computed])
        data["stale"] = stale.unsqueeze(1).float() * mask
        data = left_right_2_no_padding(data)
        tu.assign_non_tensor(
            data,
            calculate_entropy=False,
            temperature=1.0,
            global_batch_size=len(rows),
            mini_batch_size=len(computed),
            epochs=1,
            seed=self.config.seed,
            dataloader_kwargs={"shuffle": False},
        )
        metrics = _scalars(tu.get(self._worker.train_mini_batch(data), "metrics"))
        return metrics | {"computed_rows": float(len(computed)), "stale_rows": float(stale.sum())}

    def weights(self) -> dict[str, torch.Tensor]:
        """The full model on CPU, Hugging Face names, own storage for each tensor."""
        tensors, _ = self._worker.engine.get_per_tensor_param()
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors}

    def save(self, folder: str | Path) -> None:
        """Writes model, optimiser, scheduler and random state below ``folder``, so that ``load`` goes on exactly."""
        self._worker.save_checkpoint(str(folder))

    def load(self, folder: str | Path) -> None:
        """Goes on from what ``save`` wrote."""
        self._worker.load_checkpoint(str(folder))

    def _to_padded(self, rows: Sequence[Row]) -> Any:
        """verl's batch layout: prompts padded left, responses right."""
        from tensordict import TensorDict

        prompt_width = max(len(row.prompt_ids) for row in rows)
        response_width = max(len(row.response_ids) for row in rows)
        ids = np.zeros((len(rows), prompt_width + response_width), dtype=np.int64)
        attention = np.zeros_like(ids)
        for i, row in enumerate(rows):
            start, end = prompt_width - len(row.prompt_ids), prompt_width + len(row.response_ids)
            ids[i, start:prompt_width] = row.prompt_ids
            ids[i, prompt_width:end] = row.response_ids
            attention[i, start:end] = 1
        input_ids, attention_mask = torch.from_numpy(ids), torch.from_numpy(attention)
        return TensorDict(
            {
                "prompts": input_ids[:, :prompt_width],
                "responses": input_ids[:, prompt_width:],
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
                "response_mask": attention_mask[:, prompt_width:],
            },
            batch_size=len(rows),
        )


def _make_worker(model_dir: Path, config: VerlConfig) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.engine_workers import TrainingWorker

    model = HFModelConfig(
        path=str(model_dir),
        use_remove_padding=config.remove_padding,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": config.attention},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_dynamic_bsz=True,
        max_token_len_per_gpu=config.max_tokens_per_pass,
        infer_max_token_len_per_gpu=config.max_tokens_per_pass,
        use_torch_compile=False,
        mixed_precision={"param_dtype": config.dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    # verl's schedule is constant without warm-up; the number of steps only has to be positive
    optimiser = FSDPOptimizerConfig(
        lr=config.learning_rate,
        total_training_steps=1,
        weight_decay=config.weight_decay,
        betas=config.betas,
        clip_grad=config.clip_grad,
    )
    loss = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
        use_dynamic_bsz=True,
        clip_ratio=config.clip_ratio,
        clip_ratio_low=config.clip_ratio,
        clip_ratio_high=config.clip_ratio,
        loss_agg_mode="seq-mean-token-mean",
        optim=optimiser,
        fsdp_config=engine,
        use_torch_compile=False,
    )
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimiser,
            checkpoint_config=CheckpointConfig(),
            profiler_config=None,
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(policy_loss, config=loss, importance_cap=config.importance_cap))
    return worker


def distinct_rows(rows: Sequence[Row], version_in: int | None) -> list[Row]:
    """The rows whose sum of losses has the same gradient, with the weight in the advantage; at least one row.

    Where a batch is used for one step the policy ratio is one and the loss linear in the advantage: rows with the
    same tokens are one row with the sum of their advantages, and a row with none has no gradient. Short answers,
    such as the choice of a tool, repeat a lot.
    """
    sums: dict[tuple[Any, ...], tuple[Row, float]] = {}
    for row in rows:
        stale = row.version is not None and row.version != version_in
        # the importance weight of a stale row depends on the logprobs it came with
        reported = tuple(row.logprobs or ()) if stale else None
        key = (tuple(row.prompt_ids), tuple(row.response_ids), stale, reported)
        first, advantage = sums.get(key, (row, 0.0))
        sums[key] = (first, advantage + row.advantage * row.weight)
    merged = [replace(row, advantage=advantage, weight=1.0) for row, advantage in sums.values()]
    return [row for row in merged if row.advantage != 0.0] or merged[:1]


def policy_loss(config: Any, importance_cap: float, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """verl's clipped surrogate (arXiv:1707.06347) for a batch that is used for exactly one step.

    Token mean within a row, mean over rows, each row's advantage times its weight; clipping is homogeneous in the
    advantage, so the weight scales a row's loss exactly. One step a batch means that the policy before the update
    is the one whose log-probabilities this very pass computes: they are taken from it, and no pass of their own is
    spent on them. Rows marked stale get the importance weight of their older version, truncated at
    ``importance_cap``. Adds the metric ``max_logprob_diff``: the largest distance between what the server reported
    and what the trainer computes, over rows that are not stale.
    """
    from verl.utils.metric import AggregationType, Metric
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import no_padding_2_padding

    current = no_padding_2_padding(model_output["log_probs"], data).detach().float()
    reported, known, stale = (data[name] for name in ("rollout_log_probs", "rollout_log_probs_known", "stale"))
    data["old_log_probs"] = current
    if bool(stale.any()):
        weights = (current - reported).exp().clamp(max=importance_cap)
        data["rollout_is_weights"] = torch.where(stale.bool(), weights, torch.ones_like(weights))
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    difference = ((current - reported).abs() * known * (1.0 - stale)).max()
    metrics["max_logprob_diff"] = Metric(value=difference, aggregation=AggregationType.MAX)
    return loss, metrics


@contextmanager
def _quiet() -> Iterator[None]:
    """verl prints to stdout, which is ours, and warns of engines that are not installed: all that is for -vv."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    said = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(said):
        warnings.simplefilter("ignore")
        yield
    for line in said.getvalue().splitlines():
        log.debug("verl: %s", line)


def _join_process_group(backend: str) -> None:
    """Joins the process group torchrun describes, or makes one of this process alone."""
    if torch.distributed.is_initialized():
        return
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    if os.environ["WORLD_SIZE"] == "1":
        # verl's Worker reads an address; a lone process never connects to it
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
        torch.distributed.init_process_group(backend, rank=0, world_size=1, store=_lone_store())
    else:
        torch.distributed.init_process_group(backend)


def _lone_store() -> Any:
    """A rendezvous for one process: no port, no file."""
    return torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def _reported_logprobs(rows: Sequence[Row], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(logprobs the server reported, 1.0 where it did), both [rows, width]."""
    reported = np.zeros((len(rows), width), dtype=np.float32)
    known = np.zeros_like(reported)
    for i, row in enumerate(rows):
        if row.logprobs is not None:
            reported[i, : len(row.logprobs)] = row.logprobs
            known[i, : len(row.logprobs)] = 1.0
    return torch.from_numpy(reported), torch.from_numpy(known)


def _scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """verl's metrics (numbers, lists of numbers, Metric objects) as plain floats; what is no number is left out."""
    plain: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, list | tuple):
            value = value[-1] if value else None
        aggregate = getattr(value, "aggregate", None)
        number = aggregate() if callable(aggregate) else value
        if isinstance(number, int | float) and np.isfinite(number):
            plain[name] = float(number)
    return plain
