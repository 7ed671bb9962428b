"""Layers of networks: values in units of their deviation, the LSTM, and observations that are normalised."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import MINATAR, generator
from tests.build.nets import CARTPOLE, SMALL, TORSOS
from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.nets.lstm import LSTM
from zerobeast.rl.nets.normalize import CLIP, HORIZON, ArrayNorm
from zerobeast.rl.nets.popart import MAX_SCALE, MIN_SCALE, STEP_SIZE, PopArt
from zerobeast.testing.network import network, observations, steps
from zerobeast.testing.small_run import are_same

WIDTH, TASKS, N = 5, 3, 40


def layer(tasks: int = TASKS) -> PopArt:
    torch.manual_seed(1)
    return PopArt(nn.Linear(WIDTH, tasks).double())


def of_task(net: PopArt, task: int) -> list[Tensor]:
    """A copy of the statistics and weights of one task."""
    return [getattr(net, name)[task].detach().clone() for name in ("mean", "scale", "weight", "bias")]


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
    assert are_same(of_task(net, 1), kept)
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


STEPS, ROWS, INPUT, H = 7, 3, 5, 4
CORE = NetConfig(core_width=H)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def reordered(weight: Tensor) -> Tensor:
    """Of gates in torch's order: input, forget, candidate, output."""
    admit, keep, show, candidate = weight.detach().chunk(4)
    return torch.cat([admit, keep, candidate, show])


def torch_twin(lstm: LSTM) -> torch.nn.LSTM:
    """torch.nn.LSTM with the same weights."""
    twin = torch.nn.LSTM(INPUT, H)
    parts = (lstm.from_input.weight, lstm.from_hidden.weight, lstm.from_input.bias, torch.zeros(4 * H))
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    twin.load_state_dict({name: reordered(part) for name, part in zip(names, parts, strict=True)})
    return twin


def no_resets() -> Tensor:
    return torch.zeros(STEPS, ROWS, dtype=torch.bool)


def test_without_resets_it_and_its_gradients_are_torchs() -> None:
    lstm, x, state = LSTM(CORE, INPUT), torch.randn(STEPS, ROWS, INPUT), torch.randn(ROWS, 2 * H)
    twin, weights = torch_twin(lstm), torch.randn(STEPS, ROWS, H)
    hidden, cell = (half[None].contiguous() for half in state.chunk(2, dim=-1))
    expected, (last_hidden, last_cell) = twin(x, (hidden, cell))
    outputs, after = lstm(x, no_resets(), state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, torch.cat([last_hidden[0], last_cell[0]], dim=-1))
    for found in (outputs, expected):
        (found * weights).sum().backward()
    assert lstm.from_hidden.weight.grad is not None
    torch.testing.assert_close(reordered(lstm.from_hidden.weight.grad), twin.weight_hh_l0.grad)


def test_a_new_one_has_a_long_memory() -> None:
    """Orthogonal recurrence of each gate, and a forget gate that is open at first."""
    lstm = LSTM(CORE, INPUT)
    for gate in lstm.from_hidden.weight.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(H))
    assert lstm.from_input.bias.tolist() == [0.0] * H + [1.0] * H + [0.0] * 2 * H


CHANNELS_LAST = EnvSpec("Colour-v0", ArraySpace.box((36, 40, 3), "|u1"), ArraySpace.discrete(3), frame_stack=2)


@pytest.mark.parametrize("env", [CARTPOLE, MINATAR, CHANNELS_LAST])
def test_statistics_cover_everything_observed_with_one_frame_of_each_stack(env: EnvSpec) -> None:
    norm = ArrayNorm(env.obs, env.frame_stack)
    batches = [observations(env, steps, batch) for steps, batch in ((3, 2), (1, 1), (5, 4))]
    for batch in batches:
        norm.observe(batch)
    newest = [batch[:, :, -1] if env.frame_stack > 1 else batch for batch in batches]
    seen = np.concatenate([frames.flatten(0, 1).double().numpy() for frames in newest])
    assert norm.count == len(seen)
    np.testing.assert_allclose(norm.mean.numpy(), seen.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(norm.variance.numpy(), seen.var(axis=0), rtol=1e-3, atol=1e-3)


def test_old_observations_fade_once_there_are_many() -> None:
    norm = ArrayNorm(CARTPOLE.obs, 1)
    norm.observe(torch.zeros(1, 4, 4))
    norm.count.fill_(HORIZON)
    for _ in range(3):
        norm.observe(torch.ones(1, HORIZON // 2, 4))
    assert norm.count == HORIZON
    np.testing.assert_allclose(norm.mean.numpy(), 1 - (2 / 3) ** 3, rtol=1e-5)


@pytest.mark.parametrize("value", [3e38, float("inf"), float("nan")])
def test_a_value_too_large_to_square_leaves_its_entry_unchanged_and_updates_the_others(value: float) -> None:
    norm, other = ArrayNorm(CARTPOLE.obs, 1), ArrayNorm(CARTPOLE.obs, 1)
    *firsts, second = torch.randn(4, 5, 3, 4)
    for obs in firsts:
        norm.observe(obs)
    before = norm.mean.clone(), norm.variance.clone()
    soiled = second.clone()
    soiled[2, 1, 3] = value
    norm.observe(soiled)
    for obs in (*firsts, second):
        other.observe(obs)
    assert torch.equal(norm.mean[:3], other.mean[:3])
    assert torch.equal(norm.variance[:3], other.variance[:3])
    assert (norm.mean[3], norm.variance[3]) == (before[0][3], before[1][3])
    assert norm(second[0]).isfinite().all()
    norm.observe(second)
    assert norm.mean[3] != before[0][3], "it goes on"


@pytest.mark.parametrize(("torso", "env"), TORSOS)
def test_before_any_observation_the_network_equals_one_without_normalisation(torso: str, env: EnvSpec) -> None:
    plain, normalised = (network(torso, env, normalize_obs=normalize) for normalize in (False, True))
    inputs = steps(env, 2, 3)
    if torso == "mlp":
        inputs = inputs._replace(obs=inputs.obs.clamp(-CLIP, CLIP))
    core = plain.initial_state(3)
    torch.testing.assert_close(normalised(inputs, core)[0].logits, plain(inputs, core)[0].logits)


@pytest.mark.parametrize("env", [SMALL, CHANNELS_LAST])
def test_pictures_are_centred_pixel_by_pixel_and_share_one_scale(env: EnvSpec) -> None:
    net, reference = network("shallow", env, normalize_obs=True), network("shallow", env).body.torsos[0]
    torso, norm = net.body.torsos[0], net.body.norm
    norm.observe(observations(env, 4, 5))
    obs = observations(env, 6)
    reference.first.scale = 1.0
    centred = (obs.double() - norm.arrays[0].mean.double()) / norm.arrays[0].variance.double().mean().sqrt()
    torch.testing.assert_close(torso(obs, norms=norm.of_arrays), reference(centred.float()), rtol=1e-3, atol=1e-4)


def test_vectors_are_normalised_entry_by_entry_and_clipped() -> None:
    norm, seen = ArrayNorm(CARTPOLE.obs, 1), torch.randn(10, 8, 4) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + 3.0
    norm.observe(seen)
    flat = seen.flatten(0, 1).double()
    wanted = (flat - flat.mean(0)) / flat.std(0, correction=0).clamp(min=1e-4)
    torch.testing.assert_close(norm(seen.flatten(0, 1)).double(), wanted, rtol=1e-3, atol=1e-3)
    assert norm(torch.full((1, 4), 1e6)).max() == CLIP


def test_agents_that_are_away_change_no_statistics() -> None:
    net = network("mlp", CARTPOLE, normalize_obs=True)
    norm = net.body.norm.arrays[0]
    seen, away = torch.randn(5, 2, 4), torch.tensor([[False, False]] * 3 + [[False, True]] * 2)
    for who in (away, torch.ones_like(away)):
        net.observe(seen, who)
        torch.testing.assert_close(norm.mean, seen[~away].mean(0))
    assert norm.variance.isfinite().all(), "nothing was seen"
