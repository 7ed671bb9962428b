"""Continuous actions: how they fill their box, how they are explored, and which environments are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.batches import BOX, NESTED, ONES, REACH, generator, learner, transitions
from tests.build.control import CONTROL, control, of_critics, q_of
from zerobeast.common.settings.net import NetConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.algos.control.networks import BoxPolicy, Critics
from zerobeast.rl.protocol import Sampling

MANY = 2000
SIGNS = replace(REACH, obs=ArraySpace.box((12, 12), "|u1", (0.0,), (255.0,)))
LOW, HIGH = (torch.tensor(bound) for bound in (BOX.low, BOX.high))


def acts(algorithm: Any, net: Any, *, greedy: bool = False, seed: int = 1) -> torch.Tensor:
    """[MANY, 2] actions on one observation."""
    inputs = transitions(env=REACH).inputs
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


def test_every_array_of_an_observation_is_a_feature_as_it_is() -> None:
    net = BoxPolicy(NetConfig(torso="mlp", normalize_obs=True), NESTED, 2)
    inputs = transitions(env=replace(REACH, obs=NESTED.obs), n=3).inputs
    seen = net.encode(inputs)
    assert seen.shape == (3, net.vectors.out_size) == (3, 6 * 8 + 4)
    torch.testing.assert_close(seen[:, :48], inputs.obs["camera"].reshape(3, 48))
    assert torch.equal(seen[:, 48:].argmax(-1), inputs.obs["word"][0])
    net.observe(inputs.obs)
    torch.testing.assert_close(net.encode(inputs)[:, :48].mean(0), torch.zeros(48), atol=1e-5, rtol=0)
    names = ["agent_steps", *(f"vectors.norm.arrays.0.{name}" for name in ("mean", "variance", "count"))]
    layers = [f"mlp.{layer}.{part}" for layer in ("first", "second", "out") for part in ("weight", "bias")]
    assert list(net.state_dict()) == names + layers, "names in checkpoints stay"


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize(
    ("env", "torso"), [(SIGNS, "auto"), (replace(REACH, obs=NESTED.obs), "tests.build.parts:Tokens")]
)
def test_an_encoder_learns_from_the_critics_alone(tmp_path: Path, name: str, env: EnvSpec, torso: str) -> None:
    algorithm = control(tmp_path, name, env, net={"torso": torso}, **({"policy_delay": 1} if name == "td3" else {}))
    net, learning = learner(algorithm)
    for weight, learns in ((0 * ONES, False), (ONES, True)):
        before = [{key: value.clone() for key, value in part.state_dict().items()} for part in (net.vectors, net.mlp)]
        assert learning.update(transitions(env=env), weight, 0).step.applied
        for part, old, changes in zip((net.vectors, net.mlp), before, (learns, True), strict=True):
            changed = [not torch.equal(value, old[key]) for key, value in part.state_dict().items()]
            assert all(changed) if changes else not any(changed)


@pytest.mark.parametrize("j", [None, 1, 2])
def test_stacked_critics_are_networks_side_by_side(j: int | None) -> None:
    critics = Critics(3, 5 + 2, NetConfig(hidden_size=8))
    vectors, actions = torch.randn(4, 5), torch.randn(4, 2)
    written = [q_of(layers, vectors, actions) for layers in of_critics(critics)]
    torch.testing.assert_close(critics(vectors, actions, j), torch.stack(written[: j or 3]))
    for weight in (critics.first.weight, critics.second.weight, critics.out.weight):
        bound = weight.shape[1] ** -0.5
        assert bound / 2 < weight.abs().max() <= bound
        assert not torch.equal(weight[0], weight[1])
