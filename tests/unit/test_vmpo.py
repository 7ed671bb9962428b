"""V-MPO: its loss against one computed by another route, and its gradients."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import (
    PANEL,
    REACH,
    VECTORS,
    B,
    T,
    algorithm_of,
    generator,
    make_batch,
    on_policy,
    unrolled,
    with_logits,
)
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.actor_critic import unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.algorithm import Multipliers, VmpoLoss, loss
from zerobeast.rl.data.batch import Batch

vmpo = partial(algorithm_of, "vmpo")
ENVS = pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)


def loss_of(algorithm: Any, batch: Batch, net: PolicyAndValue | None = None, target: Tensor | None = None) -> VmpoLoss:
    """The loss with a target of these logits, by default those of the policy that acted."""
    config = algorithm.config.algorithm
    duals = Multipliers(config, real=algorithm.env.action.kind == "box")
    target = batch.extras["logits"] if target is None else target
    return loss(config, algorithm.family, net or algorithm.network(), duals, batch, target)


def loss_with(algorithm: Any, net: PolicyAndValue, batch: Batch, kl_weight: float) -> tuple[VmpoLoss, Multipliers]:
    """The loss with the policy that acted as the target, under this weight of the divergence from it."""
    config = algorithm.config.algorithm.model_copy(update={"kl_weight": kl_weight})
    duals = Multipliers(config, real=algorithm.env.action.kind == "box")
    return loss(config, algorithm.family, net, duals, batch, batch.extras["logits"]), duals


def busy(net: PolicyAndValue, spread: float = 0.5) -> PolicyAndValue:
    """Make a policy differ between observations."""
    for parameter in net.policy.parameters():
        nn.init.normal_(parameter, std=spread, generator=generator(5))
    return net


def choice_log_prob(batch: Batch, params: Tensor, t: int, b: int) -> float:
    policy = torch.distributions.Categorical(logits=params[t, b].double())
    return float(policy.log_prob(batch.last_action[t + 1, b]))


def box_log_prob(batch: Batch, params: Tensor, t: int, b: int) -> float:
    mean, log_std = params[t, b].double().chunk(2, -1)
    policy = torch.distributions.MultivariateNormal(mean, torch.diag((2 * log_std).exp()))
    units = (batch.last_action[t + 1, b].double() - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])
    return float(policy.log_prob(units)) - math.log(2.0 * 5.0)  # the box is [-2, 2] x [0, 10]


def reference(algorithm: Any, batch: Batch, net: PolicyAndValue, target: Tensor) -> tuple[float, float]:
    """Both losses in float64, one step at a time, sorting instead of selecting, with torch's distributions."""
    c = algorithm.config.algorithm
    logits, values = (entry.double() for entry in unrolled(net, batch))
    places = [(t, b) for b in range(B) for t in range(T) if batch.mask[t, b]]
    box = algorithm.env.action.kind == "box"
    log_probs = partial(box_log_prob if box else choice_log_prob, batch)

    def ratio(t: int, b: int) -> float:
        return min(1.0, math.exp(log_probs(target, t, b) - log_probs(batch.extras["logits"], t, b)))

    gain, target_gain = {}, {}
    for b in range(B):
        ahead = 0.0  # how far the value target of the next step is above its value
        for t in reversed(range(T)):
            if not batch.mask[t, b]:
                ahead = 0.0
                continue
            gamma = 0.0 if batch.terminated[t + 1, b] else c.discount
            delta = float(batch.reward[t + 1, b]) + gamma * float(values[t + 1, b]) - float(values[t, b])
            gain[t, b] = delta + gamma * ahead
            target_gain[t, b] = ahead = ratio(t, b) * (delta + gamma * ahead)
    best = sorted(places, key=lambda place: -gain[place])[: len(places) // 2]
    w = [ratio(*place) for place in best]
    raised = [weight * math.exp(gain[place] / c.eta) for weight, place in zip(w, best, strict=True)]
    pg = -sum(e / sum(raised) * log_probs(logits, *place) for e, place in zip(raised, best, strict=True))
    temperature = c.eta * c.eta_limit + c.eta * math.log(sum(raised) / sum(w))
    value = sum(0.5 * target_gain[place] ** 2 for place in places) / len(places)
    old, new = algorithm.family.of(target.double()), algorithm.family.of(logits[:-1])
    parts = [float(part[batch.mask].mean()) for part in old.kl_parts(new)]
    limits = [c.kl_mean_limit, c.kl_std_limit] if box else [c.kl_limit]
    pressure = sum(c.kl_weight * (limit - part) for limit, part in zip(limits, parts, strict=True))
    return pg + value + c.kl_weight * sum(parts), temperature + pressure


@pytest.mark.parametrize("env", [VECTORS, REACH], ids=lambda env: env.env_id)
@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("leapt", [False, True])
def test_the_loss_is_what_one_writes_out_by_hand(env: EnvSpec, *, use_lstm: bool, leapt: bool) -> None:
    algorithm = vmpo(env, net={"use_lstm": use_lstm}, eta=0.6, eta_limit=0.2, kl_weight=3.0, discount=0.8)
    net, batch = busy(algorithm.network()), make_batch(algorithm, resets=0.4)
    batch = with_logits(batch, 0.1 * batch.extras["logits"])
    target = 0.3 * make_batch(algorithm, seed=2).extras["logits"] if leapt else batch.extras["logits"]
    found = loss_of(algorithm, batch, net, target)
    expected = reference(algorithm, batch, net, target)
    assert (found.policy.item(), found.multipliers.item()) == pytest.approx(expected, rel=1e-5)


@ENVS
def test_the_penalty_weighs_the_divergence_and_its_weight_learns_from_the_limit(env: EnvSpec) -> None:
    algorithm = vmpo(env)
    net, batch = busy(algorithm.network()), make_batch(algorithm, resets=0.3)
    found, duals = loss_with(algorithm, net, batch, 4.0)
    found.policy.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in duals.parameters()), "the network's loss is not theirs"
    net.zero_grad()
    found.multipliers.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in net.parameters()), "nor theirs the network's"
    old, new = algorithm.family.of(batch.extras["logits"]), algorithm.family.of(unrolled(net, batch)[0][:-1])
    names = ["kl_mean", "kl_std"] if env is REACH else ["kl"]
    assert list(duals.alphas) == names
    for (name, dual), part in zip(duals.alphas.items(), old.kl_parts(new), strict=True):
        mean = part[batch.mask].mean()
        assert mean > 0.01, "there is something to see"
        torch.testing.assert_close(found.metrics[name], mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(dual.value.grad, dual.limit - mean, rtol=1e-4, atol=1e-6)


@ENVS
def test_a_weight_adds_its_multiple_of_the_divergences_gradient_to_the_policys(env: EnvSpec) -> None:
    algorithm = vmpo(env)
    net, batch = busy(algorithm.network()), make_batch(algorithm, resets=0.3)
    parameters = list(net.policy.parameters())

    def gradients(kl_weight: float) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss_with(algorithm, net, batch, kl_weight)[0].policy, parameters)

    old, new = algorithm.family.of(batch.extras["logits"]), algorithm.family.of(unroll(net, batch)[0])
    divergence = torch.stack([part[batch.mask].mean() for part in old.kl_parts(new)]).sum()
    alone = torch.autograd.grad(divergence, parameters)
    for heavy, without, expected in zip(gradients(5.0), gradients(0.0), alone, strict=True):
        assert expected.abs().max() > 0.01, "there is something to see"
        torch.testing.assert_close(heavy - without, 5 * expected, rtol=1e-4, atol=1e-5)


def moved(algorithm: Any, batch: Batch, net: PolicyAndValue) -> Tensor:
    """[T, B] bool: whether the parameters of the action get a gradient."""
    seen: list[Tensor] = []
    net.policy.register_forward_hook(lambda _, __, out: seen.append(out))
    (gradient,) = torch.autograd.grad(loss_of(algorithm, batch, net).policy, seen[0])
    return gradient.abs().amax(-1) > 1e-5


@ENVS
def test_the_worse_half_is_not_imitated_and_void_steps_are_not_ranked(env: EnvSpec) -> None:
    algorithm = vmpo(env, net={"action_std": "state"})
    net = busy(algorithm.network())
    batch = on_policy(net, make_batch(algorithm, resets=0.4))  # the divergence and its gradient are 0
    values = unrolled(net, batch)[1]
    gain = (loss_of(algorithm, batch, net).targets - values[:-1]).masked_fill(~batch.mask, math.inf)
    rank = gain.flatten().argsort(descending=True)
    n_void, n_valid = int((~batch.mask).sum()), int(batch.mask.sum())
    assert n_void > 0
    imitated = torch.zeros(T * B, dtype=torch.bool)
    imitated[rank[n_void : n_void + n_valid // 2]] = True
    assert torch.equal(moved(algorithm, batch, net), imitated.view(T, B))
