"""RMSProp with TensorFlow 1's semantics, against steps worked out by hand, and optimisers that start fast."""

import math
from typing import Any

import pytest
import torch

from tests.helpers import finished, python
from zerobeast.rl.ops import optim
from zerobeast.rl.ops.optim import RMSPropTF1

WITHOUT_COMPILER = """
import sys, torch
from zerobeast.rl.ops.optim import Adam, RMSprop, RMSPropTF1
for kind in (Adam, RMSprop, RMSPropTF1):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""


def weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_mean_square_starts_at_one_and_momentum_gathers_steps_that_carry_the_learning_rate(momentum: float) -> None:
    w = weight()
    optimizer = RMSPropTF1([w], lr=0.5, alpha=0.9, eps=0.1, momentum=momentum)
    step, mean_square, expected = 0.0, 1.0, 1.0
    for grad, rate in ((2.0, 0.5), (-1.0, 0.1), (3.0, 0.1)):
        w.grad = torch.full_like(w, grad)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        mean_square = 0.9 * mean_square + 0.1 * grad**2
        step = momentum * step + rate * grad / math.sqrt(mean_square + 0.1)
        expected -= step
        assert w.item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(("name", "settings"), [("Adam", {"fused": True}), ("RMSprop", {"momentum": 0.5})])
def test_optimisers_of_torch_take_the_same_steps_and_save_the_same(name: str, settings: dict[str, Any]) -> None:
    found = []
    for module in (torch.optim, optim):
        w = weight()
        optimizer = getattr(module, name)([w], lr=0.1, **settings)
        for grad in (2.0, -1.0, 3.0):
            w.grad = torch.full_like(w, grad)
            optimizer.step()
        optimizer.zero_grad()
        assert w.grad is None
        found.append((type(optimizer).__name__, w, optimizer.state_dict()))
    assert found[0] == found[1]


def test_no_optimiser_loads_the_compiler() -> None:
    assert finished(python("-c", WITHOUT_COMPILER)) == (0, "", "")
