"""V-MPO: its loss against one computed by another route, which policy acts, and its multipliers."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, learner, make_batch, on_policy, with_logits
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.actor_critic import unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.algorithm import Multipliers, VmpoLoss, loss
from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.nets.weights import flatten

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
        nn.init.normal_(parameter, std=spread, generator=torch.Generator().manual_seed(5))
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
    logits, values = (entry.detach().double() for entry in unroll(net, batch))
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
    old, new = algorithm.family.of(target.double()), algorithm.family.of(logits)
    parts = [float(part[batch.mask].mean()) for part in old.kl_parts(new)]
    limits = [c.kl_mean_limit, c.kl_std_limit] if box else [c.kl_limit]
    pressure = sum(c.kl_weight * (limit - part) for limit, part in zip(limits, parts, strict=True))
    return pg + value + c.kl_weight * sum(parts), temperature + pressure


@pytest.mark.parametrize("env", [VECTORS, REACH], ids=lambda env: env.env_id)
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("leapt", [False, True])
def test_the_loss_is_what_one_writes_out_by_hand(env: EnvSpec, *, core: str, leapt: bool) -> None:
    algorithm = vmpo(env, net={"core": core}, eta=0.6, eta_limit=0.2, kl_weight=3.0, discount=0.8)
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


quick = partial(algorithm_of, "vmpo", learning_rate=0.01, target_period=3)


@pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
def test_a_rollout_of_the_previous_target_is_weighted_and_compared_with_the_current_one(env: EnvSpec) -> None:
    algorithm = quick(env, target_period=1, learning_rate=0.1)
    net, learning = learner(algorithm)
    old = make_batch(algorithm, seed=2)
    old = on_policy(net, old)
    learning.update(on_policy(net, make_batch(algorithm)), 0)
    now = on_policy(net, old)._replace(policy_version=old.policy_version + 1)
    before = algorithm.family.of(old.extras["logits"]).kl(algorithm.family.of(now.extras["logits"])).mean().item()
    assert before > 1e-3, "there is something to see"
    state, found = deepcopy(learning.state()), {}
    for name, batch in (("old", old), ("now", now)):
        again = algorithm.learning(deepcopy(net))
        again.load(state)
        found[name] = again.update(batch, 0).metrics
        divergences = [value.item() for key, value in found[name].items() if key in ("kl", "kl_mean", "kl_std")]
        assert divergences == pytest.approx([0.0] * len(divergences), abs=1e-6)
    assert found["old"]["behaviour_kl"].item() == pytest.approx(before, rel=1e-3)
    assert found["now"]["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert found["old"]["pg_loss"] != found["now"]["pg_loss"]


@pytest.mark.parametrize("popart", [False, True])
def test_the_policy_that_acts_follows_every_period_and_the_divergence_is_then_zero(*, popart: bool) -> None:
    algorithm = quick(net={"normalize_obs": True}, popart=popart)
    net, learning = learner(algorithm)
    first, changes, divergences = flatten(net).tobytes(), [], []
    for seed in range(7):
        batch = on_policy(net, make_batch(algorithm, seed=seed, resets=0.2))
        learned = learning.update(batch, 0)
        changes.append(learned.changed)
        divergences.append(learned.metrics["kl"].item())
        assert (flatten(net).tobytes() == first) == (seed < 2)
    assert changes == [False, False, True, False, False, True, False]
    assert [divergence < 1e-6 for divergence in divergences] == [True, False, False] * 2 + [True]


@pytest.mark.parametrize("settings", [{"learning_rate": 1e-9}, {"max_grad_norm": 1e-12}, {"optimizer": "rmsprop"}])
def test_multipliers_have_a_learning_rate_of_their_own(settings: dict[str, Any]) -> None:
    limits = {"kl_limit": 1e-4, "eta_limit": 5.0}  # above the first limit and below the second
    pace = {"multiplier_rate": 0.02, "schedule": "linear", "target_period": 10}
    algorithm = algorithm_of("vmpo", **{**limits, **pace, **settings})
    learning = algorithm.learning(algorithm.network())
    for _ in range(5):
        learning.update(make_batch(algorithm), agent_steps=999)  # of 1000, so the policy's rate is nearly 0
    values = learning.state()["multipliers"]
    assert values["kl.value"].item() == pytest.approx(1.0 + 5 * 0.02, abs=1e-3)
    assert values["eta.value"].item() == pytest.approx(1.0 - 5 * 0.02, abs=1e-3)


STEPS = 9
EVEN = torch.zeros(STEPS, dtype=torch.float64)  #: log w if all actions were drawn from the target


def multipliers(**settings: Any) -> Multipliers:
    return Multipliers(VMPOConfig(**settings), real=False).double()


def advantages() -> Tensor:
    return 3 * torch.randn(STEPS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def eta_gradient(duals: Multipliers, of: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(duals.temperature_loss(of, EVEN), duals.eta.value)
    return gradient


@pytest.mark.parametrize("eta", [0.05, 1.0, 20.0])
def test_the_temperature_learns_from_how_far_the_weights_are_from_uniform(eta: float) -> None:
    duals, of = multipliers(eta=eta, eta_limit=0.3), advantages()
    weights = duals.weights(of, EVEN)
    divergence = torch.xlogy(weights, weights * STEPS).sum()
    torch.testing.assert_close(eta_gradient(duals, of), 0.3 - divergence, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("eta", [1e-8, 1e-3])
def test_a_temperature_near_its_floor_still_has_a_finite_gradient_in_float32(eta: float) -> None:
    duals = Multipliers(VMPOConfig(eta=eta), real=False)
    gradient = eta_gradient(duals, 1e4 * advantages().float())
    assert gradient.item() == pytest.approx(0.1 - math.log(STEPS), rel=1e-3)
