"""How IMPACT learns: its target, its old batches, the weight of the divergence, and what changes nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from tests.build.batches import algorithm_of, make_batch, on_policy, same, weights
from zerobeast.rl.algos.impact.algorithm import CEILING, FLOOR, DivergenceWeight, ImpactLearning
from zerobeast.rl.algos.policy_gradient.policy_and_value import Answer, PolicyAndValue
from zerobeast.rl.learning.gradient_descent import GradientDescent, Step
from zerobeast.rl.nets.network import StepInput

impact = partial(algorithm_of, "impact", learning_rate=0.01, schedule="constant")


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
    algorithm = impact(batches=batches, uses=uses)
    net = algorithm.network()
    learning = ImpactLearning(algorithm, net)
    learning.descent = watched = Watched(algorithm, net)
    watched.target = lambda: learning.state()["target"]["weights"]
    for seed in range(12):
        learning.update(make_batch(algorithm, seed=seed), 0)
    period = batches * uses
    assert len(watched.before) > period
    for step, target in enumerate(watched.before):
        assert same(target, watched.after[step // period * period]), step
    assert not same(watched.after[0], watched.after[1])


def test_the_target_policy_is_evaluated_on_a_batch_once_per_target(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = impact(batches=4, uses=2)
    net = algorithm.network()
    learning, asked, forward = algorithm.learning(net), list[float](), PolicyAndValue.forward

    def counted(self: PolicyAndValue, inputs: StepInput, *others: Tensor) -> tuple[Answer, Tensor]:
        if self is not net:
            asked.append(float(inputs.obs[0, 0, 0]))
        return forward(self, inputs, *others)

    monkeypatch.setattr(PolicyAndValue, "forward", counted)
    names, expected, steps = list[float](), list[tuple[int, int]](), 0
    for arrival in range(12):
        names.append(float(make_batch(algorithm, seed=arrival).obs[0, 0, 0]))
        learning.update(make_batch(algorithm, seed=arrival), 0)
        for used in (arrival - 2, arrival):  # its second use, and its first
            if used >= 0:
                if (used, steps // 8) not in expected:
                    expected.append((used, steps // 8))
                steps += 1
    assert asked == [names[used] for used, _ in expected]
    assert len(names) < len(asked) < steps


def test_a_target_with_memory_starts_where_the_rollouts_began() -> None:
    algorithm = impact(net={"use_lstm": True}, batches=1, uses=1)
    batch = on_policy(algorithm.network(), make_batch(algorithm, resets=0.2))
    learned = algorithm.learning(algorithm.network()).update(batch, 0)
    assert learned.metrics["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert learned.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    elsewhere = batch._replace(core_state=batch.core_state + 1)
    learned = algorithm.learning(algorithm.network()).update(elsewhere, 0)
    assert learned.metrics["behaviour_kl"].item() > 1e-6
    assert learned.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)


def test_an_arrival_is_worth_k_steps_once_there_are_n_batches() -> None:
    algorithm = impact(batches=4, uses=3)
    learning = algorithm.learning(algorithm.network())
    found = [learning.update(make_batch(algorithm, seed=seed), 0) for seed in range(6)]
    assert [learned.steps for learned in found] == [1, 2, 3, 3, 3, 3]
    assert all(learned.changed and not learned.skipped for learned in found)


@pytest.mark.parametrize(
    ("kls", "expected"),
    [
        ((0.09,), 3.0),
        ((0.05,), 2.0),
        ((0.03,), 2.0),
        ((0.019,), 1.0),
        pytest.param((0.0, 0.0, 0.0, 0.12), 2.0, id="the mean over a target counts, not its last step"),
        ((0.2, 0.2, 0.2, 0.01), 3.0),
    ],
)
def test_the_weight_of_the_divergence_grows_above_twice_its_aim_and_shrinks_below_half(
    kls: tuple[float, ...], expected: float
) -> None:
    weight = DivergenceWeight(2.0, 0.04)
    for kl in kls:
        weight.observe(kl)
    weight.adapt()
    assert weight.value == expected


@pytest.mark.parametrize(("kl", "end"), [(1.0, CEILING), (0.0, FLOOR)])
def test_the_weight_has_a_floor_and_a_ceiling_from_which_it_is_back_within_a_dozen_targets(
    kl: float, end: float
) -> None:
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
    algorithm = impact(batches=2, uses=1, kl_cost=0.5, kl_target=kl_target)
    learning = algorithm.learning(algorithm.network())
    found = [learning.update(make_batch(algorithm, seed=seed), 0).metrics["kl_cost"].item() for seed in range(5)]
    assert found == [0.5, 0.5, *[0.5 * factor] * 2, 0.5 * factor**2]
