"""IMPACT: its loss against one written out in loops, its target, its old batches, the weight of the divergence."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from tests.build.batches import B, T, algorithm_of, make_batch, on_policy, unroll_net, weights, with_logits
from zerobeast.rl.algos.impact.algorithm import CEILING, FLOOR, DivergenceWeight, ImpactLearning, loss
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.gradient_descent import GradientDescent, Step
from zerobeast.testing.scenes import perturb
from zerobeast.testing.small_run import are_same

impact = partial(algorithm_of, "impact")


def by_hand(config: Any, net: PolicyAndValue, batch: Batch, target_logits: Tensor, kl_cost: float) -> float:
    """The loss of discrete actions, one float after the other."""

    def log_probs(logits: Tensor) -> list[float]:
        most = max(logits.tolist())
        log_sum = most + math.log(sum(math.exp(logit - most) for logit in logits.tolist()))
        return [logit - log_sum for logit in logits.tolist()]

    total, count, (logits, values) = 0.0, 0, unroll_net(net, batch)
    for b in range(B):
        value = values[:, b].tolist()
        correction = 0.0  # of the next step's value
        for t in reversed(range(T)):
            if not batch.mask[t, b]:
                correction = 0.0
                continue
            taken = int(batch.last_action[t + 1, b])
            pi, aim, mu = (log_probs(of[t, b]) for of in (logits, target_logits, batch.extras["logits"]))
            trust = math.exp(aim[taken] - mu[taken])
            gamma = 0.0 if batch.terminated[t + 1, b] else config.discount
            delta = float(batch.reward[t + 1, b]) + gamma * value[t + 1] - value[t]
            advantage = delta + gamma * config.trace_decay * correction
            correction = (
                min(config.rho_bar, trust) * delta + gamma * config.trace_decay * min(config.c_bar, trust) * correction
            )
            ratio = min(math.exp(mu[taken] - aim[taken]), config.rho) * math.exp(pi[taken] - mu[taken])
            kept = min(max(ratio, 1 - config.clip), 1 + config.clip)
            total -= min(ratio * advantage, kept * advantage)
            total += config.baseline_cost * 0.5 * correction**2
            total += config.entropy_cost * sum(math.exp(p) * p for p in pi)
            total += kl_cost * sum(math.exp(q) * (q - p) for p, q in zip(pi, aim, strict=True))
            count += 1
    return total / count


@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("trace_decay", [0.7, 1.0])
@pytest.mark.parametrize("kl_cost", [0.0, 0.4])
def test_the_loss_equals_one_written_out_in_loops(rho: float, trace_decay: float, kl_cost: float) -> None:
    algorithm = impact(rho=rho, trace_decay=trace_decay, clip=0.3, discount=0.75, rho_bar=1.2, c_bar=0.9)
    net, other, batch = perturb(algorithm.network()), make_batch(algorithm, seed=9), make_batch(algorithm, resets=0.3)
    batch, target = with_logits(batch, 0.5 * batch.extras["logits"]), 0.5 * other.extras["logits"]
    config = algorithm.config.algorithm
    total, metrics = loss(config, algorithm.family, net, batch, target, kl_cost=kl_cost)
    assert total.item() == pytest.approx(by_hand(config, net, batch, target, kl_cost), rel=1e-5)
    assert not batch.mask.all()
    assert 0 < metrics["clipped"] < 1


quick = partial(algorithm_of, "impact", learning_rate=0.01, schedule="constant")


class Watched(GradientDescent):
    """Notes what the target is before each step, and what the policy is after it."""

    def __init__(self, algorithm: Any, net: PolicyAndValue) -> None:
        super().__init__(algorithm.config, algorithm.config.algorithm, net.parameters())
        self._net, self.before, self.after = net, list[list[Tensor]](), [weights(net)]
        self.target: Callable[[], dict[str, Tensor]] = dict

    def step(self, loss: Tensor, agent_steps: int, weight: Tensor | None = None) -> Step:
        self.before.append([value.clone() for value in self.target().values() if value.is_floating_point()])
        step = super().step(loss, agent_steps, weight)
        self.after.append(weights(self._net))
        return step


@pytest.mark.parametrize(("batches", "uses"), [(1, 1), (1, 3), (3, 2), (4, 2), (2, 3)])
def test_the_target_is_the_same_bits_for_n_times_k_steps_and_then_the_policy(batches: int, uses: int) -> None:
    algorithm = quick(batches=batches, uses=uses)
    net = algorithm.network()
    learning = ImpactLearning(algorithm, net)
    learning.descent = watched = Watched(algorithm, net)
    watched.target = lambda: learning.state()["target"]["weights"]
    found = [learning.update(make_batch(algorithm, seed=seed), 0) for seed in range(12)]
    assert found[-1].steps == uses, "an arrival is worth as many steps once there are all batches"
    assert all(learned.changed and not learned.skipped for learned in found)
    period = batches * uses
    assert len(watched.before) > period
    for step, target in enumerate(watched.before):
        assert are_same(target, watched.after[step // period * period]), step
    assert not are_same(watched.after[0], watched.after[1])


def test_a_target_with_memory_starts_where_the_rollouts_began() -> None:
    algorithm = quick(net={"core": "lstm"}, batches=1, uses=1)
    batch = on_policy(algorithm.network(), make_batch(algorithm, resets=0.2))
    learned = algorithm.learning(algorithm.network()).update(batch, 0)
    assert learned.metrics["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert learned.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    elsewhere = batch._replace(core_state=batch.core_state + 1)
    learned = algorithm.learning(algorithm.network()).update(elsewhere, 0)
    assert learned.metrics["behaviour_kl"].item() > 1e-6
    assert learned.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("kls", "expected"), [((0.09,), 3.0), ((0.03,), 2.0), ((0.019,), 1.0), ((0.0, 0.0, 0.0, 0.12), 2.0)]
)
def test_the_weight_grows_if_the_mean_over_a_target_is_above_twice_its_aim_and_shrinks_below_half(
    kls: tuple[float, ...], expected: float
) -> None:
    weight = DivergenceWeight(2.0, 0.04)
    for kl in kls:
        weight.observe(kl)
    weight.adapt()
    assert weight.value == expected


@pytest.mark.parametrize(("kl", "end"), [(1.0, CEILING), (0.0, FLOOR)])
def test_the_weight_has_a_floor_and_a_ceiling_from_which_it_is_back_in_a_dozen_targets(kl: float, end: float) -> None:
    weight = DivergenceWeight(1.0, 0.04)
    for _ in range(100):
        weight.observe(kl)
        weight.adapt()
    assert weight.value == end
    for _ in range(12):
        weight.observe(1.0 - kl)
        weight.adapt()
    assert (weight.value - 1.0) * (end - 1.0) <= 0


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-9, 1.5), (1e9, 0.5)])
def test_the_weight_of_the_divergence_adapts_when_the_target_is_replaced(kl_target: float, factor: float) -> None:
    algorithm = quick(batches=2, uses=1, kl_cost=0.5, kl_target=kl_target)
    learning = algorithm.learning(algorithm.network())
    found = [learning.update(make_batch(algorithm, seed=seed), 0).metrics["kl_cost"].item() for seed in range(5)]
    assert found == [0.5, 0.5, *[0.5 * factor] * 2, 0.5 * factor**2]
