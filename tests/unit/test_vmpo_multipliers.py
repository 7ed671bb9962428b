"""The multipliers that V-MPO learns besides the policy, against their identities."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import generator
from zerobeast.rl.algos.vmpo.algorithm import Multipliers
from zerobeast.rl.algos.vmpo.config import VMPOConfig

N = 9
EVEN = torch.zeros(N, dtype=torch.float64)  #: log w if all actions were drawn from the target


def multipliers(**settings: Any) -> Multipliers:
    return Multipliers(VMPOConfig(**settings), real=False).double()


def advantages() -> Tensor:
    return 3 * torch.randn(N, dtype=torch.float64, generator=generator())


def eta_gradient(duals: Multipliers, of: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(duals.temperature_loss(of, EVEN), duals.eta.value)
    return gradient


@pytest.mark.parametrize("eta", [0.05, 1.0, 20.0])
def test_the_temperature_learns_from_how_far_the_weights_are_from_uniform(eta: float) -> None:
    duals, of = multipliers(eta=eta, eta_limit=0.3), advantages()
    weights = duals.weights(of, EVEN)
    divergence = torch.xlogy(weights, weights * N).sum()
    torch.testing.assert_close(eta_gradient(duals, of), 0.3 - divergence, rtol=1e-12, atol=1e-14)


def test_the_temperature_ends_where_that_divergence_is_the_limit() -> None:
    duals, of = multipliers(eta=1.0, eta_limit=0.3), advantages()
    optimizer = torch.optim.SGD([duals.eta.value], lr=1.0)
    for _ in range(500):
        optimizer.zero_grad()
        duals.temperature_loss(of, EVEN).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = duals.weights(of, EVEN)
    assert torch.xlogy(weights, weights * N).sum().item() == pytest.approx(0.3, abs=1e-6)


def test_only_differences_of_advantages_count() -> None:
    duals, of = multipliers(), advantages()
    torch.testing.assert_close(eta_gradient(duals, of), eta_gradient(duals, of + 1000), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(duals.temperature_loss(of + 7, EVEN), duals.temperature_loss(of, EVEN) + 7)


def test_the_temperature_loss_is_the_papers() -> None:
    duals, of = multipliers(eta=0.7, eta_limit=0.3), advantages()
    expected = 0.7 * 0.3 + 0.7 * (of / 0.7).exp().mean().log()
    assert duals.temperature_loss(of, EVEN).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("eta", [1e-8, 1e-3])
def test_a_temperature_near_its_floor_still_has_a_finite_gradient_in_float32(eta: float) -> None:
    duals = Multipliers(VMPOConfig(eta=eta), real=False)
    gradient = eta_gradient(duals, 1e4 * advantages().float())
    assert gradient.item() == pytest.approx(0.1 - math.log(N), rel=1e-3)


def test_an_action_of_half_the_weight_counts_as_half_an_action() -> None:
    """Drawing every other action twice, at half its weight, leaves the sample the same; so does halving all weights."""
    duals, of = multipliers(eta=0.7, eta_limit=0.3), advantages()
    plain = duals.weights(of, EVEN)
    for scale in (1.0, 0.5):
        twice = torch.cat([of, of[::2]])
        halved = torch.full_like(of, scale)
        halved[::2] /= 2
        weights = torch.cat([halved, halved[::2]])
        psi = duals.weights(twice, weights.log())
        merged = psi[:N].clone()
        merged[::2] += psi[N:]
        torch.testing.assert_close(merged, plain)
        torch.testing.assert_close(duals.temperature_loss(twice, weights.log()), duals.temperature_loss(of, EVEN))


def test_weights_are_uniform_when_hot_and_all_on_the_best_when_cold() -> None:
    of = advantages()
    torch.testing.assert_close(multipliers(eta=1e9).weights(of, EVEN), torch.full_like(of, 1 / N))
    cold = multipliers(eta=1e-6).weights(of, EVEN)
    assert cold.argmax() == of.argmax()
    assert cold.max().item() == pytest.approx(1.0)
    assert not cold.requires_grad
