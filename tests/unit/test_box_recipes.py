"""Recipes for continuous actions: categorical critics, batch norms without target networks, scaled rewards.

Losses and gradients are compared with the papers' equations, written out in float64.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import ONES, REACH, N, generator, learner, transitions, weights
from tests.build.control import control, units_of
from zerobeast.common.wire import ArraySpace
from zerobeast.rl.algos.control import reward_scale
from zerobeast.rl.algos.control.reward_scale import EpisodeReturns, RewardScale
from zerobeast.rl.algos.sac.config import SACConfig
from zerobeast.rl.data import Batch
from zerobeast.services.learner.checkpoint import pack_state, unpack_state
from zerobeast.testing.small_run import are_same

Layers = dict[str, Tensor]
ATOMS = {"atoms": 7, "v_min": -3.0, "v_max": 4.0}
ALONE = {"target_network": False}
SCALE = 3.0  #: of rewards, once the largest return is 15 and the deviation 2
#: algorithm, norm and settings, by what is special about them
RECIPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "entropy shifts the support": ("sac", "none", {**ATOMS, "normalize_returns": True}),
    "batch norm and no target": ("sac", "batch", ALONE),
    "batch norm and a target": ("sac", "batch", {}),
    "batch norm, no target and atoms": ("sac", "batch", {**ALONE, **ATOMS}),
    "twin delayed atoms": ("td3", "none", {**ATOMS, "policy_delay": 1, "target_noise": 0.4}),
    "no target policy": ("ddpg", "batch", ALONE),
}


def doubles(net: nn.Module) -> Layers:
    """Copies in float64; of layers that are not stacked, as if they were a stack of one."""
    named = {name: entry.detach().double() for name, entry in net.state_dict().items()}
    return {name: entry.T.clone() if entry.dim() == 2 else entry.clone() for name, entry in named.items()}


def standardise(layers: Layers, name: str, x: Tensor, by_batch: bool) -> Tensor:
    if f"{name}.mean" not in layers:
        return x
    mean, variance = (layers[f"{name}.{part}"].reshape(-1, 1, x.shape[-1]) for part in ("mean", "variance"))
    if by_batch:
        mean = x.mean(-2, keepdim=True)
        variance = (x - mean).square().mean(-2, keepdim=True)
    x = (x - mean) / (variance + 1e-5).sqrt()
    return x * layers[f"{name}.weight"] + layers[f"{name}.bias"] if f"{name}.weight" in layers else x


def written(layers: Layers, x: Tensor, *, by_batch: bool = False) -> Tensor:
    """[N, n_in] -> [k, N, n_out], by statistics of these rows or running ones if there are norms."""
    x = standardise(layers, "in_norm", x[None], by_batch)
    for name in ("first", "second"):
        x = x @ layers[f"{name}.weight"] + layers[f"{name}.bias"]
        x = standardise(layers, f"{name}_norm", x, by_batch).clamp(min=0)
    return x @ layers["out.weight"] + layers["out.bias"]


def act(algo: str, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, and their log-densities; 0 of a policy that is deterministic."""
    if algo != "sac":
        return outputs.tanh(), torch.zeros(len(outputs), dtype=torch.float64)
    mean, log_std = outputs.chunk(2, -1)
    before = mean + log_std.clamp(-20, 2).exp() * noise
    normal = -0.5 * noise.square() - log_std.clamp(-20, 2) - 0.5 * math.log(2 * math.pi)
    return before.tanh(), (normal - (1 - before.tanh().square()).log()).sum(-1)


def q_means(answers: Tensor) -> Tensor:
    """[k, N] of what critics answer, [k, N, 1] or logits [k, N, K]."""
    support = torch.linspace(-3.0, 4.0, 7, dtype=torch.float64)
    return answers[..., 0] if answers.shape[-1] == 1 else (answers.softmax(-1) * support).sum(-1)


def distances(answers: Tensor, later: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """[k, N] of each answer to the target: half the squared error, or the divergence of the projected distribution."""
    smallest = q_means(later).argmin(0)
    least = later[smallest, torch.arange(len(smallest))].detach()
    if answers.shape[-1] == 1:
        return 0.5 * (answers[..., 0] - (reward + discount * least[:, 0])).square()
    support = torch.linspace(-3.0, 4.0, 7, dtype=torch.float64)
    places = (reward[:, None] + discount[:, None] * support).clamp(-3.0, 4.0)
    near = (1 - (places[:, None] - support[:, None]).abs() / (support[1] - support[0])).clamp(min=0)  # [N, to, from]
    target = (near * least.softmax(-1)[:, None]).sum(-1)
    entropy = -torch.xlogy(target, target).sum(-1)
    return -(target * answers.log_softmax(-1)).sum(-1) - entropy


def slopes(net: nn.Module) -> dict[str, Tensor]:
    """Will have the gradients of the next update."""
    found: dict[str, Tensor] = {}
    for name, entry in net.named_parameters():
        entry.register_hook(partial(found.__setitem__, name))
    return found


def compare(loss: Tensor, layers: Layers, found: dict[str, Tensor]) -> None:
    names = list(found)
    for name, grad in zip(names, torch.autograd.grad(loss, [layers[name] for name in names]), strict=True):
        own = grad.T if grad.dim() == 2 else grad
        torch.testing.assert_close(found[name].double(), own, rtol=1e-4, atol=1e-5, msg=lambda why, at=name: at + why)


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_gradients_are_those_of_the_equations(tmp_path: Path, recipe: str) -> None:
    torch.manual_seed(1)
    algo, norm, settings = RECIPES[recipe]
    algorithm = control(tmp_path, algo, net={"norm": norm}, learning_rate=0.02, target_rate=0.3, **settings)
    (net, learning), by_batch = learner(algorithm), norm == "batch"
    for seed in range(2):
        learning.update(transitions(seed, REACH), ONES, 0)
    if scale := learning.parts["reward_scale"]:
        scale.largest.fill_(5 * SCALE)
        scale.variance.fill_(4.0)
    parts = learning.parts
    copies = [
        parts[name].copy if parts.get(name) else source
        for name, source in (("critics_target", parts["critics"]), ("policy_target", net.mlp))
    ]
    critics, policy, target, policy_target = (doubles(each) for each in (parts["critics"], net.mlp, *copies))
    for layers in (critics, policy):
        for entry in layers.values():
            entry.requires_grad_()
    alpha = float(parts["temperature"].value) if algo == "sac" else 0.0
    of_critics, of_policy = slopes(parts["critics"]), slopes(net.mlp)

    batch, importance = transitions(7, REACH), torch.rand(N)
    torch.manual_seed(3)
    result = learning.update(batch, importance, 0)
    torch.manual_seed(3)
    obs, after = batch.inputs.obs[0].double(), batch.next_inputs.obs[0].double()
    noises = torch.randn(N, 2).double(), torch.randn(N, 2).double()

    next_action, log_prob = act(algo, written(policy_target, after)[0], noises[0])
    if algo == "td3":
        next_action = (next_action + (0.4 * noises[0]).clamp(-0.5, 0.5)).clamp(-1, 1)
    done, to_do = (torch.cat(each, -1) for each in ((obs, units_of(batch.action)), (after, next_action.detach())))
    if by_batch:
        pairs = torch.cat([done, to_do])
        answers, _ = written(critics, pairs, by_batch=True).chunk(2, 1)
        _, later = written(target, pairs, by_batch=True).chunk(2, 1)
    else:
        answers, later = written(critics, done), written(target, to_do)
    reward = batch.reward / SCALE if scale else batch.reward
    shifted = reward - batch.discount * alpha * log_prob.detach()
    each = distances(answers, later, shifted, batch.discount.double())
    loss = (each * importance).mean(-1).sum()
    assert result.metrics["critic_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.metrics["q_mean"].item() == pytest.approx(q_means(answers).mean().item(), rel=1e-4, abs=1e-5)
    compare(loss, critics, of_critics)

    changed = doubles(parts["critics"])
    action, log_prob = act(algo, written(policy, obs, by_batch=by_batch)[0], noises[1])
    values = q_means(written(changed, torch.cat([obs, action], -1)))
    policy_loss = (alpha * log_prob - (values.amin(0) if algo == "sac" else values[0])).mean()
    assert result.metrics["policy_loss"].item() == pytest.approx(policy_loss.item(), rel=1e-3, abs=1e-5)
    compare(policy_loss, policy, of_policy)


def test_policy_and_temperature_wait_for_every_third_update_of_the_critics(tmp_path: Path) -> None:
    net, learning = learner(control(tmp_path, "sac", policy_delay=3))
    parts, changes = learning.parts, []
    for seed in range(6):
        learned = (net, parts["temperature"], parts["critics_target"].copy, parts["critics"])
        before = [weights(part) for part in learned]
        learning.update(transitions(seed, REACH), ONES, 0)
        changes.append([not are_same(was, weights(part)) for was, part in zip(before, learned, strict=True)])
    assert changes == ([[False, False, False, True]] * 2 + [[True] * 4]) * 2


STEPS, STREAMS, GAMMA = 4, 3, 0.9
SETTINGS = SACConfig(reward_scale=0.5, discount=GAMMA)
Call = tuple[int, list[int]]  #: number of a rollout, and the streams that it is of
ORDERS: list[list[Call]] = [
    [(0, [0, 1]), (0, [2]), (1, [1, 2]), (1, [0]), (2, [2, 0, 1])],
    [(0, [2, 0]), (1, [2]), (2, [2]), (0, [1]), (1, [0, 1]), (2, [1, 0])],
]


class Played:
    """Three rollouts of each stream: rewards, ends of episodes, and steps that are not to be learned from."""

    def __init__(self, outlier: float = 0.0) -> None:
        self.reward = torch.randn(3 * STEPS + 1, STREAMS, generator=generator())
        self.first = torch.rand(self.reward.shape, generator=generator(5)) < 0.2
        self.first[0], self.first[STEPS, 0], self.first[STEPS + 1, 0] = True, False, False
        self.first[-1, 2] = False
        self.reward[-1, 2] += outlier
        self.mask = ~self.first[1:]
        self.mask[-1, 1] = False  # as beyond the budget

    def rollout(self, number: int, streams: list[int]) -> Batch:
        begin, end = number * STEPS, (number + 1) * STEPS
        reward, first = (entry[begin : end + 1, streams] for entry in (self.reward, self.first))
        empty, origin = torch.zeros(len(streams), 0), [[7 + (of > 1), of, number, of % 2, 2] for of in streams]
        entries: dict[str, Any] = {"obs": None, "last_action": None, "extras": {}, "policy_version": empty}
        entries |= {"core_state": empty, "task": empty, "origin": torch.tensor(origin)}
        entries |= {"terminated": first, "truncated": first, "mask": self.mask[begin:end, streams]}
        return Batch(reward=reward, first=first, **entries)

    def returns(self) -> Iterator[float]:
        """G of each transition to learn from."""
        for stream in range(STREAMS):
            so_far = 0.0
            for t in range(3 * STEPS):
                so_far = (0.0 if self.first[t, stream] else GAMMA * so_far) + 0.5 * float(self.reward[t + 1, stream])
                if self.mask[t, stream]:
                    yield so_far


def observed(batches: list[Batch], returns: EpisodeReturns | None = None) -> RewardScale:
    returns, scale = returns or EpisodeReturns(GAMMA), RewardScale()
    for number, batch in enumerate(batches):
        returns.observe(batch, SETTINGS)
        if number % 2:
            scale.join(returns)
    scale.join(returns)
    return scale


@pytest.mark.parametrize("outlier", [0.0, 50.0])
@pytest.mark.parametrize("order", ORDERS)
def test_rewards_are_divided_by_the_deviation_of_returns_or_a_fifth_of_the_largest(
    order: list[Call], outlier: float
) -> None:
    played = Played(outlier)
    returns = np.array(list(played.returns()))
    divisor = max(returns.std(), abs(returns).max() / 5)
    assert (divisor > returns.std()) == bool(outlier)
    found = observed([played.rollout(*call) for call in order])(torch.ones(2, 3))
    np.testing.assert_allclose(found, 1 / divisor, rtol=1e-4)


def test_a_loaded_scale_continues_bit_for_bit() -> None:
    batches = [Played().rollout(*call) for call in ORDERS[0]]
    whole, again = EpisodeReturns(GAMMA), EpisodeReturns(GAMMA)
    for batch in batches[:3]:
        whole.observe(batch, SETTINGS)
    again.load(unpack_state(pack_state(whole.state())))
    scales = [observed(batches[3:], returns).state_dict() for returns in (whole, again)]
    assert are_same(*scales)
    assert not are_same(observed(batches[3:]).state_dict(), scales[0])


def test_the_environments_that_came_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_scale, "MAX_STREAMS", 2)
    observed([Played().rollout(*call) for call in ORDERS[1]], returns := EpisodeReturns(GAMMA))
    assert [slot for _, slot, _ in returns.state()["now"]] == [1, 0]


def test_two_rollouts_of_one_environment_in_a_batch_follow_one_another() -> None:
    played = Played()
    one, two = (played.rollout(number, [0]) for number in range(2))
    apart, together = observed([one, two]), observed([Batch.join([one, two])])
    torch.testing.assert_close(together.variance, apart.variance)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_does_not_spoil_the_scale(bad: float) -> None:
    played = Played()
    batch = played.rollout(0, [0, 1])
    batch.reward[2, 1] = bad
    scale = observed([batch, played.rollout(1, [0, 1])])
    assert float(scale(torch.ones(()))) > 0


def test_an_observation_that_is_not_finite_does_not_spoil_batch_norms(tmp_path: Path) -> None:
    _, learning = learner(control(tmp_path, "sac", net={"norm": "batch"}))
    batch = transitions(env=REACH)
    batch.inputs.obs[0, 0, 0] = math.nan
    assert not learning.update(batch, ONES, 0).step.applied
    assert learning.update(transitions(env=REACH), ONES, 0).step.applied


def test_a_skipped_step_leaves_the_policy_and_its_statistics(tmp_path: Path) -> None:
    env = replace(REACH, obs=ArraySpace.box((12, 12), "|u1", (0.0,), (255.0,)))
    net, learning = learner(control(tmp_path, "sac", env, net={"norm": "batch"}))
    batch, before = transitions(env=env), weights(net)
    assert not learning.update(batch._replace(reward=batch.reward * math.nan), ONES, 0).step.applied
    assert are_same(weights(net), before)
