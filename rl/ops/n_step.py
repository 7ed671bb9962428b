"""Returns over n steps, for every step of sequences at once."""

import torch
from torch import Tensor


def n_step_returns(*, rewards: Tensor, discounts: Tensor, values: Tensor, mask: Tensor, n: int) -> Tensor:
    """sum_{i < m} gamma^i r_{t+i} + gamma^m v_{t+m} with m = n, or less if the sequence or its episode ends first.

    Args:
      rewards: [T, B] of transition t.
      discounts: [T, B], gamma; 0 where transition t terminated.
      values: [T + 1, B] of the observation before transition t, and of the one after the last.
      mask: [T, B] bool, True where transition t is valid; False where the episode has already ended.
      n: at least 1.

    Returns:
      [T, B]; entries where `mask` is False are meaningless.
    """
    assert rewards.shape == discounts.shape == mask.shape, "want three [T, B]"
    assert values[1:].shape == rewards.shape, "want values [T + 1, B]"
    returns = values
    for _ in range(n):  # m = 0 everywhere, then one more where there is one more transition
        longer = rewards + discounts * returns[1:]
        returns = torch.cat([torch.where(mask, longer, values[:-1]), values[-1:]])
    return returns[:-1]
