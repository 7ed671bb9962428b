"""How IMPALA learns with old batches and an adaptive entropy weight, both of which are off by default."""

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, bandit, generator, make_batch, same, weights
from zerobeast.common.errors import ConfigError
from zerobeast.rl.algos.impala import algorithm as module
from zerobeast.rl.algos.impala.algorithm import ImpalaLearning
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.dual import FLOOR
from zerobeast.rl.protocol import Metrics

impala = partial(algorithm_of, "impala", learning_rate=0.01, schedule="constant")


def peaked(algorithm: Any) -> Any:
    """A network that is far from uniform."""
    net = algorithm.network()
    with torch.no_grad():
        net.policy.bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    return net


def seen(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """A list that receives, from now on, every batch that a loss is computed from, in order."""
    batches, real = list[Batch](), module.loss

    def noted(config: Any, family: Any, net: Any, batch: Batch, *, entropy_cost: Any) -> tuple[Tensor, Metrics]:
        batches.append(batch)
        return real(config, family, net, batch, entropy_cost=entropy_cost)

    monkeypatch.setattr(module, "loss", noted)
    return batches


@pytest.mark.parametrize("use_lstm", [False, True])
def test_one_use_and_a_fixed_weight_are_one_plain_step_per_batch_bit_for_bit(*, use_lstm: bool) -> None:
    algorithm = impala(net={"use_lstm": use_lstm, "normalize_obs": True})
    nets = [algorithm.network(), algorithm.network()]
    plain, other = algorithm.learning(nets[0]), ImpalaLearning(algorithm, nets[1])
    assert isinstance(plain, OneStep)
    for seed in range(4):
        one, two = (each.update(make_batch(algorithm, resets=0.2, seed=seed), 0) for each in (plain, other))
        assert one == two
    assert same(weights(nets[0]), weights(nets[1]))
    averages = [each.state()["optimizer"]["state"]["state"] for each in (plain, other)]
    assert all(same(list(averages[0][key].values()), list(averages[1][key].values())) for key in averages[0])
    assert other.state()["batches"] == []


@pytest.mark.parametrize(("batches", "uses"), [(1, 3), (4, 4), (4, 2), (10, 2)])
def test_every_batch_is_learned_from_k_times_while_n_arrive(
    batches: int, uses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = impala(batches=batches, uses=uses)
    used, learning = seen(monkeypatch), algorithm.learning(algorithm.network())
    arrivals, steps = [make_batch(algorithm, seed=seed) for seed in range(24)], []
    for batch in arrivals:
        steps.append(learning.update(batch, 0).steps)
    assert steps[batches - 1 :] == [uses] * (len(arrivals) - batches + 1), "one step per use"
    count = Counter(float(batch.obs[0, 0, 0]) for batch in used)
    assert [count[float(batch.obs[0, 0, 0])] for batch in arrivals[:-batches]] == [uses] * (len(arrivals) - batches)
    assert len(used) == sum(steps)


def test_a_batch_that_is_not_finite_is_left_out_and_counted_at_every_use() -> None:
    algorithm = impala(batches=2, uses=2, entropy_target=0.5)
    net = algorithm.network()
    learning = algorithm.learning(net)
    bad = make_batch(algorithm)
    bad.extras["logits"][...] = math.nan
    learned = learning.update(bad, 0)
    assert (learned.steps, learned.skipped, learned.changed) == (0, 1, False)
    assert same(weights(net), weights(algorithm.network()))
    assert learning.state()["entropy_weight"]["weight"]["value"] == pytest.approx(0.01), "it was not moved either"
    learned = learning.update(make_batch(algorithm, seed=2), 0)
    assert (learned.steps, learned.skipped, learned.changed) == (1, 1, True)


@pytest.mark.parametrize(("target", "grows"), [(1.09, True), (0.1, False)])
def test_the_weight_starts_as_configured_grows_below_the_target_and_shrinks_above(
    target: float, *, grows: bool
) -> None:
    algorithm = impala(entropy_cost=0.03, entropy_target=target, learning_rate=1e-6)
    learning = algorithm.learning(peaked(algorithm))
    found = [learning.update(make_batch(algorithm, seed=seed), 0) for seed in range(4)]
    costs = [learned.metrics["entropy_cost"].item() for learned in found]
    assert 0.1 < found[0].metrics["entropy"] < 1.09, "otherwise this test says nothing"
    assert costs[0] == pytest.approx(0.03)
    assert costs == sorted(set(costs), reverse=not grows)
    assert abs(costs[1] - costs[0]) == pytest.approx(0.01 * 0.03, rel=0.1), "a hundredth of where it started"


def test_the_weight_never_falls_below_its_floor() -> None:
    algorithm = impala(entropy_target=1e-3, learning_rate=1e-6)
    learning = algorithm.learning(algorithm.network())
    for seed in range(150):
        cost = learning.update(make_batch(algorithm, seed=seed, steps=1), 0).metrics["entropy_cost"]
    assert cost.item() == pytest.approx(FLOOR)


def test_a_batch_without_a_valid_step_leaves_the_entropy_weight_alone() -> None:
    algorithm = impala(entropy_target=1.0)
    learning = algorithm.learning(algorithm.network())
    void = make_batch(algorithm)._replace(mask=torch.zeros(T, B, dtype=torch.bool))
    learning.update(void, 0)
    assert learning.update(void, 0).metrics["entropy_cost"].item() == pytest.approx(0.01)


def test_the_weight_is_what_the_loss_uses() -> None:
    """Only entropy counts, and the policy is far from uniform: a high weight moves it towards uniform."""
    moved = {}
    for cost in (1e-6, 1.0):
        algorithm = impala(entropy_cost=cost, entropy_target=1.09, baseline_cost=0.0)
        net, batch = peaked(algorithm), make_batch(algorithm)._replace(reward=torch.zeros(T + 1, B))
        torch.nn.init.zeros_(net.value.weight)
        learning = algorithm.learning(net)
        entropies = [learning.update(batch, 0).metrics["entropy"].item() for _ in range(5)]
        moved[cost] = entropies[-1] - entropies[0]
    assert moved[1.0] > 0.01 > abs(moved[1e-6])


@pytest.mark.parametrize(("target", "start"), [(0.5, 1.0), (0.9, 0.4)])
def test_in_a_bandit_the_entropy_ends_at_its_target(target: float, start: float) -> None:
    """One state, three arms, of which the first pays: weights of 0.41 and 0.78 hold these entropies."""
    policy = {"optimizer": "adam", "epsilon": 1e-5, "learning_rate": 2e-3, "reduction": "mean", "discount": 0.0}
    algorithm = impala(entropy_target=target, entropy_cost=start, batches=2, uses=2, **policy)
    net, g = algorithm.network(), generator()
    learning, entropies = algorithm.learning(net), list[float]()
    state = make_batch(algorithm, rows=64)
    state = state._replace(obs=torch.ones_like(state.obs))
    for _ in range(200):
        batch = bandit(algorithm, net, state, torch.tensor(0), g)
        entropies.append(learning.update(batch, 0).metrics["entropy"].item())
    # The entropy swings: the mean of 40 updates of 16 rows each varies by as much as the tolerance.
    assert sum(entropies[-100:]) / 100 == pytest.approx(target, abs=0.05)


@pytest.mark.parametrize("origin", ["made with all of it", "made with none"])
def test_a_run_resumes_after_replay_and_entropy_target_were_switched(origin: str) -> None:
    plain, all_of_it = impala(), impala(batches=2, uses=2, replay_share=0.5, entropy_target=0.5)
    before, after = (plain, all_of_it) if origin == "made with none" else (all_of_it, plain)
    saved = before.learning(before.network())
    saved.update(make_batch(before), 0)
    net = after.network()
    learning = after.learning(net)
    learning.load(saved.state())
    learned = learning.update(make_batch(after, seed=2), 0)
    assert (learned.steps, learned.skipped) == (1, 0)
    assert not same(weights(net), weights(after.network()))


@pytest.mark.parametrize(
    ("env", "settings", "sentence"),
    [
        (VECTORS, {"entropy_target": 1.2}, r"impala.entropy_target 1.2: expected between 0 and 1.099"),
        (VECTORS, {"entropy_target": -0.5}, r"impala.entropy_target -0.5: expected between 0 and 1.099"),
        (PANEL, {"entropy_target": 2.5}, r"expected between 0 and 2.485"),
        (REACH, {"entropy_target": -1.0, "entropy_cost": 0.0}, r"impala.entropy_cost 0.0: expected more than 0"),
    ],
)
def test_a_target_that_no_policy_reaches_is_refused(env: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        algorithm_of("impala", env, **settings)


def test_real_actions_may_have_any_target() -> None:
    algorithm = algorithm_of("impala", REACH, entropy_target=-1.0)
    learned = algorithm.learning(algorithm.network()).update(make_batch(algorithm), 0)
    assert learned.metrics["entropy_cost"].item() == pytest.approx(0.01)
