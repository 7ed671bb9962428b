"""V-MPO: its loss against one written out by another route, its gradients, and who follows whom."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.algo_fakes import (
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
)
from zerobeast.common.algos.actor_critic import unroll
from zerobeast.common.algos.dual import FLOOR
from zerobeast.common.algos.protocol import Batch
from zerobeast.common.algos.vmpo.loss import VmpoLoss, loss
from zerobeast.common.algos.vmpo.multipliers import Multipliers
from zerobeast.common.nets.agent import AgentNet, AgentOutput, StepInput
from zerobeast.common.nets.popart import PopArt
from zerobeast.common.nets.weights import flatten
from zerobeast.common.wire.specs import EnvSpec

pytestmark = pytest.mark.unit

vmpo = partial(algorithm_of, "vmpo", learning_rate=0.01, target_period=3)
ENVS = pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)


def loss_of(algorithm: Any, batch: Batch, net: AgentNet | None = None, target: Tensor | None = None) -> VmpoLoss:
    """Of a target of these logits, or of the policy that acted."""
    config = algorithm.config.vmpo
    duals = Multipliers(config, real=algorithm.env.action.kind == "box")
    target = batch.behaviour_logits if target is None else target
    return loss(config, algorithm.family, net or algorithm.network(), duals, batch, target)


def busy(net: AgentNet, spread: float = 0.5) -> AgentNet:
    """A policy that is not the same everywhere."""
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


def reference(algorithm: Any, batch: Batch, net: AgentNet, target: Tensor) -> tuple[float, float]:
    """Both losses in float64, one step at a time, sorting instead of selecting, with torch's distributions."""
    c = algorithm.config.vmpo
    logits, values = (entry.double() for entry in unrolled(net, batch))
    places = [(t, b) for b in range(B) for t in range(T) if batch.mask[t, b]]
    box = algorithm.env.action.kind == "box"
    log_probs = partial(box_log_prob if box else choice_log_prob, batch)

    def ratio(t: int, b: int) -> float:
        return min(1.0, math.exp(log_probs(target, t, b) - log_probs(batch.behaviour_logits, t, b)))

    gain, target_gain = {}, {}
    for b in range(B):
        ahead = 0.0  # what the target of the value of the step after is above it
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
    batch = batch._replace(behaviour_logits=0.1 * batch.behaviour_logits)
    target = 0.3 * make_batch(algorithm, seed=2).behaviour_logits if leapt else batch.behaviour_logits
    found = loss_of(algorithm, batch, net, target)
    expected = reference(algorithm, batch, net, target)
    assert (found.policy.item(), found.multipliers.item()) == pytest.approx(expected, rel=1e-5)


@ENVS
def test_a_rollout_of_the_target_before_is_weighed_and_compared_with_the_target_of_now(env: EnvSpec) -> None:
    algorithm = vmpo(env, target_period=1, learning_rate=0.1)
    net = algorithm.network()
    learning = algorithm.learning(net)
    old = make_batch(algorithm, seed=2)
    old = on_policy(net, old)
    learning.update(on_policy(net, make_batch(algorithm)), 0)
    now = on_policy(net, old)._replace(policy_version=old.policy_version + 1)
    before = algorithm.family.of(old.behaviour_logits).kl(algorithm.family.of(now.behaviour_logits)).mean().item()
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


def test_only_rollouts_of_other_versions_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = vmpo()
    net, asked, forward = algorithm.network(), list[int](), AgentNet.forward
    learning = algorithm.learning(net)

    def counted(self: AgentNet, inputs: StepInput, *others: Tensor) -> tuple[AgentOutput, Tensor]:
        if self is net:
            asked.append(inputs.obs.shape[1])
        return forward(self, inputs, *others)

    batch = on_policy(net, make_batch(algorithm))
    version = batch.policy_version.clone()
    version[3:, 1] = 7
    monkeypatch.setattr(AgentNet, "forward", counted)
    learning.update(batch, 0)
    assert asked == []
    learning.update(batch._replace(policy_version=version), 0)
    assert asked == [1]


@ENVS
def test_the_penalty_weighs_the_divergence_for_the_policy_and_compares_it_for_its_weight(env: EnvSpec) -> None:
    algorithm = vmpo(env)
    c = algorithm.config.vmpo.model_copy(update={"kl_weight": 4.0})
    net, batch = busy(algorithm.network()), make_batch(algorithm, resets=0.3)
    duals = Multipliers(c, real=env is REACH)
    found = loss(c, algorithm.family, net, duals, batch, batch.behaviour_logits)
    found.policy.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in duals.parameters()), "the network's loss is not theirs"
    net.zero_grad()
    found.multipliers.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in net.parameters()), "nor theirs the network's"
    old, new = algorithm.family.of(batch.behaviour_logits), algorithm.family.of(unrolled(net, batch)[0][:-1])
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

    def gradients(kl_weight: float) -> list[Tensor]:
        c = algorithm.config.vmpo.model_copy(update={"kl_weight": kl_weight})
        duals = Multipliers(c, real=env is REACH)
        found = loss(c, algorithm.family, net, duals, batch, batch.behaviour_logits)
        return list(torch.autograd.grad(found.policy, parameters))

    old, new = algorithm.family.of(batch.behaviour_logits), algorithm.family.of(unroll(net, batch)[0])
    divergence = torch.stack([part[batch.mask].mean() for part in old.kl_parts(new)]).sum()
    alone = torch.autograd.grad(divergence, parameters)
    for heavy, light, expected in zip(gradients(5.0), gradients(2.0), alone, strict=True):
        assert expected.abs().max() > 0.01, "there is something to see"
        torch.testing.assert_close(heavy - light, 3 * expected, rtol=1e-4, atol=1e-5)


def moved(algorithm: Any, batch: Batch, net: AgentNet) -> Tensor:
    """[T, B] bool, whose actions' parameters get a gradient."""
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


def test_half_of_the_steps_are_chosen_where_all_advantages_are_equal() -> None:
    algorithm = vmpo(discount=0.0)
    net = busy(algorithm.network())
    nn.init.zeros_(net.value.weight)
    batch = on_policy(net, make_batch(algorithm)._replace(reward=torch.ones(T + 1, B)))
    assert int(moved(algorithm, batch, net).sum()) == T * B // 2
    assert loss_of(algorithm, batch, net).metrics["eta_kl"].item() == pytest.approx(0.0, abs=1e-6)


def test_a_batch_without_a_valid_transition_is_put_aside_and_one_with_a_single_one_is_not() -> None:
    algorithm = vmpo()
    batch = make_batch(algorithm)._replace(mask=torch.zeros(T, B, dtype=torch.bool))
    learning = algorithm.learning(algorithm.network())
    assert learning.update(batch, 0)[:3] == (0, 0, False)
    batch.mask[2, 1] = True
    assert learning.update(batch, 0)[:3] == (1, 0, False)


@pytest.mark.parametrize("popart", [False, True])
def test_the_policy_that_acts_follows_every_period_and_diverges_from_nothing_then(*, popart: bool) -> None:
    algorithm = vmpo(net={"normalize_obs": True}, popart=popart)
    net = algorithm.network()
    learning, first, changes, divergences = algorithm.learning(net), flatten(net).tobytes(), [], []
    for seed in range(7):
        batch = on_policy(net, make_batch(algorithm, seed=seed, resets=0.2))
        learned = learning.update(batch, 0)
        changes.append(learned.changed)
        divergences.append(learned.metrics["kl"].item())
        assert (flatten(net).tobytes() == first) == (seed < 2)
    assert changes == [False, False, True, False, False, True, False]
    assert [divergence < 1e-6 for divergence in divergences] == [True, False, False] * 2 + [True]


def test_multipliers_stay_positive_whatever_the_rate() -> None:
    algorithm = vmpo(REACH, multiplier_rate=3.0, eta_limit=50.0, kl_mean_limit=50.0, kl_std_limit=50.0)
    net = algorithm.network()
    learning = algorithm.learning(net)
    for seed in range(4):
        learning.update(on_policy(net, make_batch(algorithm, seed=seed)), 0)
    values = learning.state()["multipliers"]
    assert list(values) == ["eta.value", "kl_mean.value", "kl_std.value"]
    assert all(value.item() == pytest.approx(FLOOR) for value in values.values())


@pytest.mark.parametrize("settings", [{}, {"learning_rate": 1e-9}, {"max_grad_norm": 1e-12}, {"optimizer": "rmsprop"}])
def test_the_pace_of_multipliers_is_their_own(settings: dict[str, Any]) -> None:
    limits = {"kl_limit": 1e-4, "eta_limit": 5.0}  # above the one and below the other
    pace = {"multiplier_rate": 0.02, "schedule": "linear", "target_period": 10}
    algorithm = algorithm_of("vmpo", **{**limits, **pace, **settings})
    learning = algorithm.learning(algorithm.network())
    for _ in range(5):
        learning.update(make_batch(algorithm), agent_steps=999)  # of 1000: the policy's rate is all but 0
    values = learning.state()["multipliers"]
    assert values["kl.value"].item() == pytest.approx(1.0 + 5 * 0.02, abs=1e-3)
    assert values["eta.value"].item() == pytest.approx(1.0 - 5 * 0.02, abs=1e-3)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    algorithm = vmpo(popart=True, target_period=1)
    net, batch = algorithm.network(), make_batch(algorithm)
    learning, before = algorithm.learning(net), flatten(net).tobytes()
    batch.behaviour_logits[2, 1] = math.nan
    assert learning.update(batch, 0)[:3] == (0, 1, False)
    assert flatten(net).tobytes() == before
    assert learning.state()["multipliers"]["eta.value"] == 1.0
    assert learning.update(make_batch(algorithm), 0)[:3] == (1, 0, True)


def test_with_popart_losses_are_small_and_values_in_units_of_rewards() -> None:
    algorithm = vmpo(popart=True, discount=0.0, target_period=60, learning_rate=0.05)
    net = algorithm.network()
    assert isinstance(net.value, PopArt)
    batch = make_batch(algorithm)
    batch = batch._replace(reward=batch.reward.clamp(-1, 1) * 1000 + 5000)
    for _ in range(50):
        net.value.observe(batch.reward[1:].flatten().repeat(100))
    assert net.value.mean.item() == pytest.approx(5000, rel=0.1)
    assert unrolled(net, batch)[1].abs().max() < 10, "what it says has not changed"
    learning = algorithm.learning(net)
    losses = [learning.update(batch, 0).metrics["baseline_loss"].item() for _ in range(60)]
    assert losses[0] == pytest.approx(((batch.reward[1:] / net.value.scale).square() / 2).mean().item(), rel=0.1)
    assert losses[-1] < 1.0
    assert unrolled(net, batch)[1].mean().item() == pytest.approx(5000, rel=0.2)


@pytest.mark.parametrize("env", [VECTORS, REACH], ids=lambda env: env.env_id)
def test_what_was_good_becomes_likelier(env: EnvSpec) -> None:
    algorithm = vmpo(env, discount=0.0, target_period=1)
    net, batch = algorithm.network(), make_batch(algorithm)
    batch = on_policy(net, batch)
    batch.reward[1:] = torch.linspace(-3, 3, T * B).view(T, B)
    learning = algorithm.learning(net)

    def log_probs() -> Tensor:
        found: Tensor = algorithm.family.of(unrolled(net, batch)[0][:-1]).log_prob(batch.last_action[1:])
        return found

    before = log_probs()
    for _ in range(20):
        learning.update(batch, 0)
    assert (log_probs() - before)[-1].mean() > 0.01
