"""RMSProp with TensorFlow 1's semantics, against steps worked out by hand."""

import math

import pytest
import torch

from zerobeast.rl.ops.optim import RMSPropTF1


def weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))


def test_the_mean_square_starts_at_one_and_epsilon_is_inside_the_root() -> None:
    w = weight()
    optimizer = RMSPropTF1([w], lr=0.5, alpha=0.9, eps=0.1)
    w.grad = torch.full_like(w, 2.0)
    optimizer.step()
    # ms = 0.9 * 1 + 0.1 * 4 = 1.3;  w = 1 - 0.5 * 2 / sqrt(1.3 + 0.1)
    assert w.item() == pytest.approx(1 - 1 / math.sqrt(1.4), abs=1e-15)
    w.grad = torch.full_like(w, -1.0)
    optimizer.step()
    # ms = 0.9 * 1.3 + 0.1 * 1 = 1.27
    assert w.item() == pytest.approx(1 - 1 / math.sqrt(1.4) + 0.5 / math.sqrt(1.37), abs=1e-15)


def test_momentum_accumulates_steps_that_already_carry_the_learning_rate() -> None:
    w = weight()
    optimizer = RMSPropTF1([w], lr=0.5, alpha=0.9, eps=0.1, momentum=0.8)
    step, mean_square, expected = 0.0, 1.0, 1.0
    for grad, rate in ((2.0, 0.5), (-1.0, 0.1), (3.0, 0.1)):
        w.grad = torch.full_like(w, grad)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        mean_square = 0.9 * mean_square + 0.1 * grad**2
        step = 0.8 * step + rate * grad / math.sqrt(mean_square + 0.1)
        expected -= step
        assert w.item() == pytest.approx(expected, abs=1e-14)


def test_a_parameter_without_gradient_stays() -> None:
    w = weight()
    RMSPropTF1([w], lr=0.5).step()
    assert w.item() == 1.0
