"""Group-relative advantages of rollouts, by verl's own estimator."""

from __future__ import annotations

from collections.abc import Sequence


def grpo_advantages(rewards: Sequence[float], groups: Sequence[int], *, by_std: bool = True) -> list[float]:
    """One advantage a rollout: its reward against the mean of its group, over the group's standard deviation.

    ``groups[i]`` names the group of ``rewards[i]``. A group of one has no baseline: its advantage is its reward.
    The estimator sees one row of one token for each rollout (arXiv:2402.03300, outcome supervision); spreading the
    result over a rollout's rows is the batch's business. Without ``by_std`` only the mean is taken off
    (arXiv:2503.20783). Imports torch and verl on first use.
    """
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    scores = torch.tensor(list(rewards), dtype=torch.float32).unsqueeze(1)
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=scores,
        response_mask=torch.ones_like(scores),
        index=np.asarray(groups),
        norm_adv_by_std_in_grpo=by_std,
    )
    return advantages[:, 0].tolist()
