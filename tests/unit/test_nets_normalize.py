"""Observations normalised inside the network: the statistics, their effect on inputs, and their transfer."""

import numpy as np
import pytest
import torch

from tests.build.batches import MINATAR
from tests.build.nets import CARTPOLE, SMALL, TORSOS
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.nets.normalize import CLIP, HORIZON, ArrayNorm
from zerobeast.testing.network import network, observations, steps

CHANNELS_LAST = EnvSpec("Colour-v0", ArraySpace.box((36, 40, 3), "|u1"), ArraySpace.discrete(3), frame_stack=2)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


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
