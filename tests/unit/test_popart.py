"""Statistics of values change while values do not, and the layer learns in units of the deviation."""

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import generator, same
from tests.build.nets import of_task
from zerobeast.rl.nets.popart import MAX_SCALE, MIN_SCALE, STEP_SIZE, PopArt

WIDTH, TASKS, N = 5, 3, 40


def layer(tasks: int = TASKS) -> PopArt:
    torch.manual_seed(1)
    return PopArt(nn.Linear(WIDTH, tasks).double())


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5])
def test_values_stay_the_same_when_the_statistics_change(size: float) -> None:
    net, x = layer(), numbers(7, WIDTH)
    torch.manual_seed(1)
    before = net(x)
    assert torch.equal(before, nn.Linear(WIDTH, TASKS).double()(x)), "those of the layer that it replaces"
    tasks = torch.arange(N) % TASKS
    for seed in range(20):
        net.observe(size * (3 + numbers(N, seed=seed)), tasks)
    assert not torch.equal(net.scale, torch.ones_like(net.scale))
    torch.testing.assert_close(net(x), before, rtol=1e-12, atol=1e-12 * size)


def test_the_statistics_are_running_moments_one_target_after_another() -> None:
    """Hessel et al. 2018: mean and second moment each take a step towards every target."""
    net, mean, square = layer(1), 0.0, 1.0
    for seed in range(300):
        (target,) = 50 + 10 * numbers(1, seed=seed)
        net.observe(target[None])
        mean += STEP_SIZE * (float(target) - mean)
        square += STEP_SIZE * (float(target) ** 2 - square)
    assert net.mean.item() == pytest.approx(mean, rel=1e-9)
    assert net.scale.item() == pytest.approx((square - mean**2) ** 0.5, rel=1e-9)


def test_a_task_without_targets_keeps_everything_to_the_bit_and_others_get_their_own() -> None:
    net, alone = layer(), layer(1)
    net.observe(1e4 + numbers(N), torch.ones(N, dtype=torch.int64))
    kept = of_task(net, 1)
    for seed in range(300):
        targets = 5 + numbers(N, seed=seed)
        net.observe(targets, torch.tensor([0, 2]).repeat(N // 2))
        alone.observe(targets[::2])
    assert same(of_task(net, 1), kept)
    assert (net.mean[0], net.scale[0]) == (alone.mean[0], alone.scale[0])
    assert net.mean[2] != net.mean[0]


@pytest.mark.parametrize(("size", "bound"), [(0.0, MIN_SCALE), (1e12, MAX_SCALE)])
def test_the_scale_stays_between_its_bounds(size: float, bound: float) -> None:
    net = layer(1)
    for _ in range(30):
        net.observe(size * numbers(5000))
    assert net.scale.item() == pytest.approx(bound)


def test_the_gradient_is_that_of_learning_in_units_of_the_deviation() -> None:
    net, x, target = layer(1), numbers(N, WIDTH), 100 * numbers(N, 1, seed=2)
    for _ in range(20):
        net.observe(target[:, 0])
    plain = nn.Linear(WIDTH, 1).double()
    plain.load_state_dict({"weight": net.weight, "bias": net.bias})
    ((net(x) - target) / net.scale).square().mean().backward()
    (plain(x) - (target - net.mean) / net.scale).square().mean().backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(net.get_parameter(name).grad, parameter.grad, rtol=1e-10, atol=1e-12)
