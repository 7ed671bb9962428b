"""Continuous actions: how they fill their box, how they are explored, and which environments are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.algo_fakes import ALGORITHMS, BOX, NESTED, generator, values_of
from tests.box_fakes import control, mlp, of_critics, transitions
from zerobeast.common.settings.run import NetConfig
from zerobeast.rl.nets.q_control import Critics
from zerobeast.rl.nets.vectors import Vectors
from zerobeast.rl.protocol import Sampling
from zerobeast.rl.replay_settings import BoxSettings

CONTROL = [name for name, section in ALGORITHMS.items() if issubclass(section, BoxSettings)]
MANY = 2000
LOW, HIGH = (torch.tensor(bound) for bound in (BOX.low, BOX.high))


def acts(algorithm: Any, net: Any, *, greedy: bool = False, seed: int = 1) -> torch.Tensor:
    """[MANY, 2] actions on one observation."""
    inputs = transitions().inputs
    inputs = inputs._replace(obs=inputs.obs[:, :1].expand(1, MANY, -1))
    core = torch.zeros(MANY, 0)
    act, after = algorithm.act(net, inputs, core, Sampling(torch.arange(MANY), generator(seed), greedy=greedy))
    assert act.extras == {}
    assert after.shape == core.shape
    return act.action


@pytest.mark.parametrize("name", CONTROL)
def test_the_bounds_of_the_box_are_reached_and_never_passed(tmp_path: Path, name: str) -> None:
    algorithm = control(tmp_path, name)
    net = algorithm.network()
    for sign, bound in ((100.0, HIGH), (-100.0, LOW)):
        with torch.no_grad():
            net.mlp.out.bias[:2] = sign
        torch.testing.assert_close(acts(algorithm, net, greedy=True)[0], bound)
        explored = acts(algorithm, net)
        assert (explored >= LOW - 1e-5).all()
        assert (explored <= HIGH + 1e-5).all()


@pytest.mark.parametrize("name", CONTROL)
def test_actions_are_uniform_until_random_steps_and_greedy_ones_never_are(tmp_path: Path, name: str) -> None:
    algorithm = control(tmp_path, name, random_steps=100)
    net = algorithm.network()
    best = acts(algorithm, net, greedy=True)
    assert torch.equal(best[0].expand_as(best), best)
    net.agent_steps.fill_(99)
    share = (acts(algorithm, net) - LOW) / (HIGH - LOW)
    assert torch.allclose(share.mean(0), torch.tensor(1 / 2), atol=0.03)
    assert torch.allclose(share.var(0), torch.tensor(1 / 12), atol=0.006)
    assert torch.equal(acts(algorithm, net, greedy=True), best)
    net.agent_steps.fill_(100)
    half = (HIGH - LOW) / 2
    if name != "sac":
        assert torch.allclose(((acts(algorithm, net) - best) / half).std(0), torch.tensor(0.1), atol=0.01)
        return
    with torch.no_grad():
        net.mlp.out.weight[2:].zero_()
        net.mlp.out.bias[2:] = -1.0
    before = torch.atanh((acts(algorithm, net) - (LOW + HIGH) / 2) / half)
    assert torch.allclose(before.std(0), torch.tensor(-1.0).exp(), atol=0.03)
    assert not torch.equal(acts(algorithm, net), acts(algorithm, net, seed=2))


def test_every_array_of_an_observation_is_in_the_vector() -> None:
    vectors = Vectors(NetConfig(torso="mlp", normalize_obs=True), NESTED)
    obs = values_of(NESTED.obs, 1, 3)
    seen = vectors(obs)
    assert seen.shape == (3, vectors.size) == (3, 6 * 8 + 4)
    torch.testing.assert_close(seen[:, :48], obs["camera"].reshape(3, 48))
    assert torch.equal(seen[:, 48:].argmax(-1), obs["word"][0])
    assert vectors.norm is not None
    vectors.norm.observe(obs)
    torch.testing.assert_close(vectors(obs)[:, :48].mean(0), torch.zeros(48), atol=1e-5, rtol=0)


@pytest.mark.parametrize("j", [None, 1, 2])
def test_stacked_critics_are_networks_side_by_side(j: int | None) -> None:
    critics = Critics(3, [5 + 2, 8, 8])
    vectors, actions = torch.randn(4, 5), torch.randn(4, 2)
    written = [mlp(torch.cat([vectors, actions], -1), layers)[:, 0] for layers in of_critics(critics)]
    torch.testing.assert_close(critics(vectors, actions, j), torch.stack(written[: j or 3]))
    weights = [critics.first.weight, critics.second.weight, critics.out.weight]
    for weight in weights:
        bound = weight.shape[1] ** -0.5
        assert bound / 2 < weight.abs().max() <= bound
        assert not torch.equal(weight[0], weight[1])


def test_the_activation_of_critics_is_relu_unless_another_is_chosen() -> None:
    outputs = {}
    for activation in ("auto", "relu", "elu"):
        torch.manual_seed(2)
        outputs[activation] = Critics(2, [5, 8, 8], activation)(torch.ones(3, 4), torch.ones(3, 1))
    assert torch.equal(outputs["auto"], outputs["relu"])
    assert not torch.equal(outputs["auto"], outputs["elu"])
