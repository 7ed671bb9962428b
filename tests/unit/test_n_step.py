"""N-step returns against their defining sum, step by step."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.ops.returns import n_step_returns

T, B, GAMMA = 9, 40, 0.9


def definition(rewards: Tensor, terminated: Tensor, values: Tensor, mask: Tensor, n: int) -> Tensor:
    """Sum from each step on, over at most n steps, as long as transitions are valid."""
    found = torch.full((T, B), torch.nan)
    for b in range(B):
        for start in range(T):
            total, weight, t = 0.0, 1.0, start
            while t < T and t < start + n and mask[t, b]:
                total += weight * rewards[t, b].item()
                weight *= 0.0 if terminated[t, b] else GAMMA
                t += 1
            found[start, b] = total + weight * values[t, b].item()
    return found


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_the_recursion_is_the_sum(n: int) -> None:
    rewards, values = torch.randn(T, B), torch.randn(T + 1, B)
    ends = torch.rand(T, B) < 0.3  # each followed by a void transition
    terminated = ends & (torch.rand(T, B) < 0.5)
    mask = torch.cat([torch.ones(1, B, dtype=torch.bool), ~ends[:-1]])
    discounts = GAMMA * (~terminated).float()
    returns = n_step_returns(rewards=rewards, discounts=discounts, values=values, mask=mask, n=n)
    torch.testing.assert_close(returns[mask], definition(rewards, terminated, values, mask, n)[mask])


def test_returns_bootstrap_from_the_last_observation_if_truncated_and_not_if_terminated() -> None:
    values = torch.tensor([[9.0, 9.0], [9.0, 9.0], [4.0, 4.0], [9.0, 9.0]])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    discounts = torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.5, 0.5]])
    returns = n_step_returns(rewards=torch.ones(3, 2), discounts=discounts, values=values, mask=mask, n=5)
    assert returns[:2].tolist() == [[1 + 0.5 + 0.25 * 4, 1 + 0.5], [1 + 0.5 * 4, 1.0]]


def test_a_wrong_shape_is_refused() -> None:
    ones = torch.ones(3, 2)
    with pytest.raises(AssertionError, match="values"):
        n_step_returns(rewards=ones, discounts=ones, values=ones, mask=ones > 0, n=1)
