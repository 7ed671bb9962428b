"""N-step returns against their defining sum, and R2D2's rescaling of values against its formulas."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.ops.returns import n_step_returns, rescale, unrescale

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


NUMBERS = torch.tensor([0.0, 1e-4, 0.01, 0.5, 1.0, 3.0, 20.0, 1e3, 1e6], dtype=torch.float64)
NUMBERS = torch.cat([-NUMBERS, NUMBERS])


@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_rescaling_and_its_inverse_are_the_papers_formulas(eps: float) -> None:
    x, size, sign = NUMBERS, NUMBERS.abs(), NUMBERS.sign()
    torch.testing.assert_close(rescale(x, eps), sign * ((size + 1).sqrt() - 1) + eps * x)
    root = (1 + 4 * eps * (size + 1 + eps)).sqrt()
    torch.testing.assert_close(unrescale(x, eps), sign * (((root - 1) / (2 * eps)).square() - 1), rtol=1e-8, atol=1e-12)


def test_the_inverse_is_accurate_in_single_precision_too() -> None:
    x = NUMBERS.float()
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=2e-6, atol=0.0)
    torch.testing.assert_close(rescale(unrescale(x)), x, rtol=2e-6, atol=0.0)
