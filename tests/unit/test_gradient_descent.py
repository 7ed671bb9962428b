"""One gradient step: its optimiser, its schedule, its clip, and a loss that is not finite."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.errors import refuses
from zerobeast.common.errors import CheckpointError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.algos.impala.config import ImpalaConfig
from zerobeast.rl.learning.gradient_descent import GradientDescent, are_squares_finite
from zerobeast.rl.ops import optim
from zerobeast.rl.ops.optim import Adam, AdamW, RAdam, RMSprop, RMSPropTF1


def descent(net: nn.Module, **settings: Any) -> GradientDescent:
    plain = {"optimizer": "rmsprop", "schedule": "constant", "max_grad_norm": 1e9, **settings}
    config = RunConfig.model_validate({"total_steps": 1000, "impala": plain})
    return GradientDescent(config, config.algorithm, net.parameters())


def loss_of(net: nn.Linear, factor: float = 1.0) -> Tensor:
    return factor * net(torch.tensor([[1.0, 2.0]])).sum()


@pytest.fixture
def net() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(2, 1, bias=False)


def test_each_descent_moves_its_own_parameters_whatever_its_loss_goes_through() -> None:
    shared, policy, critic = (nn.Linear(2, 2, bias=False) for _ in range(3))
    one, two = descent(nn.Sequential(shared, policy)), descent(critic)
    x, before = torch.tensor([[1.0, 2.0]]), [each.weight.detach().clone() for each in (shared, policy, critic)]
    policy_loss, critic_loss = policy(shared(x)).sum(), critic(shared(x)).sum()
    two.step(critic_loss, 0)  # goes through `shared`, whose gradient belongs to the other
    assert all(part.weight.grad is None for part in (shared, policy, critic))
    moved = [not torch.equal(part.weight, was) for part, was in zip((shared, policy, critic), before, strict=True)]
    assert moved == [False, False, True]
    expected = torch.autograd.grad(policy(shared(x)).sum(), [shared.weight, policy.weight])
    one.optimizer.param_groups[0].update(alpha=0.0, eps=1.0)
    one.step(policy_loss, 0)
    rate = one.optimizer.param_groups[0]["lr"]
    for part, was, grad in zip((shared, policy), before, expected, strict=False):
        torch.testing.assert_close(part.weight.detach(), was - rate * grad / (grad.abs() + 1.0), rtol=1e-5, atol=1e-6)


KINDS = {"rmsprop": RMSprop, "rmsprop_tf": RMSPropTF1, "adam": Adam, "adamw": AdamW, "radam": RAdam}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_optimizer_is_the_configured_one(net: nn.Linear, name: str, kind: type) -> None:
    settings = {"epsilon": 0.03, "alpha": 0.9, "momentum": 0.2, "learning_rate": 0.004, "weight_decay": 0.5}
    optimizer = descent(net, optimizer=name, **settings).optimizer
    assert type(optimizer) is kind
    expected = {"eps": 0.03, "lr": 0.004} | ({"alpha": 0.9, "momentum": 0.2} if name.startswith("rmsprop") else {})
    assert expected.items() <= optimizer.param_groups[0].items()
    assert optimizer.param_groups[0].get("weight_decay", 0) == (0.5 if name == "adamw" else 0)


def test_the_learning_rate_follows_the_schedule() -> None:
    rates = [ImpalaConfig(learning_rate=0.8, schedule="linear").learning_rate_at(at, 1000) for at in (0, 500, 1100)]
    assert rates == [0.8, pytest.approx(0.4), 0.0]


def test_a_step_goes_down_the_clipped_gradient_at_the_rate_of_its_agent_steps(net: nn.Linear) -> None:
    before = net.weight.detach().clone()
    one = descent(net, alpha=0.0, epsilon=1.0, learning_rate=0.5, schedule="linear", max_grad_norm=0.1)
    step = one.step(loss_of(net), 500)
    assert step.applied
    assert (step.grad_norm, step.learning_rate) == (pytest.approx(5**0.5), 0.25)
    grad = torch.tensor([[1.0, 2.0]]) * 0.1 / 5**0.5
    torch.testing.assert_close(net.weight.detach(), before - 0.25 * grad / (grad + 1.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", KINDS)
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_dropped_without_a_change(net: nn.Linear, factor: float, optimizer: str) -> None:
    one = descent(net, optimizer=optimizer, momentum=0.5)
    one.step(loss_of(net), 0)
    before, state = net.weight.detach().clone(), str(one.state())
    assert not one.step(loss_of(net, factor), 0).applied
    assert torch.equal(net.weight, before)
    assert str(one.state()) == state
    assert one.step(loss_of(net), 0).applied


def test_a_nonfinite_gradient_is_noticed_even_if_the_loss_is_finite(net: nn.Linear) -> None:
    with torch.no_grad():
        net.weight.zero_()
    loss = net(torch.ones(1, 2)).sum().sqrt()  # 0, with an infinite slope
    assert not descent(net).step(loss, 0).applied
    assert not net.weight.any()


def test_a_loaded_state_goes_on_under_the_settings_of_this_start(net: nn.Linear) -> None:
    before, now = descent(net, optimizer="adam"), descent(net, optimizer="adam", epsilon=0.5)
    before.step(loss_of(net), 0)
    now.load(deepcopy(before.state()))
    assert now.optimizer.param_groups[0]["eps"] == 0.5
    [[was], [found]] = ([*each.optimizer.state.values()] for each in (before, now))
    assert torch.equal(found["exp_avg"], was["exp_avg"])


@pytest.mark.parametrize(
    ("name", "twin"), [("adamw", partial(torch.optim.AdamW, weight_decay=0.3)), ("radam", torch.optim.RAdam)]
)
def test_adamw_and_radam_take_torchs_steps_and_continue_bit_for_bit(name: str, twin: Any) -> None:
    """RAdam rectifies from its sixth step on, after the state was restored."""
    torch.manual_seed(1)
    whole, halves, written = (deepcopy(each) for each in [nn.Linear(3, 2)] * 3)
    make = partial(descent, optimizer=name, learning_rate=0.05, epsilon=1e-3, weight_decay=0.3)
    one, two, own = make(whole), make(halves), twin(written.parameters(), lr=0.05, eps=1e-3)
    for number in range(10):
        x, target = torch.randn(8, 3), torch.randn(8, 2)
        if number == 4:
            saved = deepcopy(two.state())
            two = make(halves)
            two.load(saved)
        for net, each in ((whole, one), (halves, two)):
            assert each.step((net(x) - target).square().mean(), 0).applied
        own.zero_grad()
        (written(x) - target).square().mean().backward()
        own.step()
    for a, b, c in zip(whole.parameters(), halves.parameters(), written.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_optimizer_or_of_other_trained_parameters_is_refused_in_one_sentence(net: nn.Linear) -> None:
    with refuses(kind=CheckpointError, value="Adam", expected="RMSprop"):
        descent(net).load(descent(net, optimizer="adam").state())
    before, now = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)) for _ in range(2))
    before[0].requires_grad_(requires_grad=False)
    with refuses(kind=CheckpointError, value=2, expected="4"):
        descent(now).load(descent(before).state())


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


OF_TORCH: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"fused": True}),
    ("AdamW", {"fused": True, "weight_decay": 0.1}),
    ("RAdam", {"foreach": True}),
    ("RMSprop", {"momentum": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), OF_TORCH)
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


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float32).max ** 0.5 * 1.001])
@pytest.mark.parametrize("at", [0, 9999])
def test_one_bad_entry_of_ten_thousand_is_found(bad: float, at: int) -> None:
    entries = torch.full((10_000,), torch.finfo(torch.float32).max ** 0.5 * 0.999)
    assert are_squares_finite([torch.ones(2), -entries, torch.empty(0)])
    entries[at] = bad
    assert not are_squares_finite([torch.ones(2), entries.view(100, 100), torch.zeros(())])
