"""V-MPO: its loss against one computed by another route, and its gradients."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, generator, make_batch, unrolled, with_logits
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.actor_critic import unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.algorithm import Multipliers, VmpoLoss, loss
from zerobeast.rl.data.batch import Batch

vmpo = partial(algorithm_of, "vmpo")


def loss_of(
    algorithm: Any, net: PolicyAndValue, batch: Batch, kl_weight: float, target: Tensor | None = None
) -> tuple[VmpoLoss, Multipliers]:
    """The loss with a target of these logits, by default those that acted, under this weight of the divergence."""
    config = algorithm.config.algorithm.model_copy(update={"kl_weight": kl_weight})
    duals = Multipliers(config, real=algorithm.env.action.kind == "box")
    target = batch.extras["logits"] if target is None else target
    return loss(config, algorithm.family, net, duals, batch, target), duals


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
    found, _ = loss_of(algorithm, net, batch, 3.0, target)
    expected = reference(algorithm, batch, net, target)
    assert (found.policy.item(), found.multipliers.item()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
def test_the_penalty_weighs_the_divergence_and_its_weight_learns_from_the_limit(env: EnvSpec) -> None:
    algorithm = vmpo(env)
    net, batch = busy(algorithm.network()), make_batch(algorithm, resets=0.3)
    parameters = list(net.policy.parameters())
    (found, duals), (without, _) = (loss_of(algorithm, net, batch, kl_weight) for kl_weight in (4.0, 0.0))
    old, new = algorithm.family.of(batch.extras["logits"]), algorithm.family.of(unroll(net, batch)[0])
    parts = [part[batch.mask].mean() for part in old.kl_parts(new)]
    assert min(parts) > 0.01, "there is something to see"
    of_loss, plain, of_penalty = (
        torch.autograd.grad(total, parameters, retain_graph=True)
        for total in (found.policy, without.policy, torch.stack(parts).sum())
    )
    for heavy, light, expected in zip(of_loss, plain, of_penalty, strict=True):
        torch.testing.assert_close(heavy - light, 4 * expected, rtol=1e-4, atol=1e-5)
    found.policy.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in duals.parameters()), "the network's loss is not theirs"
    net.zero_grad()
    found.multipliers.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in net.parameters()), "nor theirs the network's"
    assert list(duals.alphas) == (["kl_mean", "kl_std"] if env is REACH else ["kl"])
    for (name, dual), mean in zip(duals.alphas.items(), parts, strict=True):
        torch.testing.assert_close(found.metrics[name], mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(dual.value.grad, dual.limit - mean, rtol=1e-4, atol=1e-6)
