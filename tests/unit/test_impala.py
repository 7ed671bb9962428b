"""IMPALA: its loss, and an adaptive entropy weight, which is off by default."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.build.batches import (
    PANEL,
    REACH,
    VECTORS,
    B,
    T,
    algorithm_of,
    make_batch,
    on_policy,
    same,
    unrolled,
    weights,
)
from tests.build.errors import refused
from zerobeast.rl.algos.impala.algorithm import ImpalaLearning
from zerobeast.rl.algos.policy_gradient.one_step import OneStep

impala = partial(algorithm_of, "impala", learning_rate=0.01, schedule="constant")


def test_rewards_are_scaled_before_they_are_clipped() -> None:
    algorithm = impala()
    net, batch = algorithm.network(), make_batch(algorithm)

    def loss(reward: float, **settings: Any) -> float:
        rewards = torch.full_like(batch.reward, reward)
        rewards[0] = 0.0
        # the network clips what it sees, so that 4 and 40 look alike to it
        return impala(**settings).loss(net, batch._replace(reward=rewards))[0].item()

    assert loss(40.0, reward_scale=0.1, reward_clipping="none") == loss(4.0, reward_clipping="none")
    assert loss(4.0, reward_scale=0.1) == pytest.approx(loss(40.0, reward_scale=0.01), rel=1e-6)
    assert loss(40.0, reward_scale=0.1) == loss(4.0)


def test_the_mean_is_the_sum_over_the_number_of_valid_transitions() -> None:
    summed, mean = impala(), impala(reduction="mean")
    net, batch = summed.network(), make_batch(summed, resets=0.3)
    assert 0 < batch.mask.sum() < T * B
    torch.testing.assert_close(mean.loss(net, batch)[0] * batch.mask.sum(), summed.loss(net, batch)[0])


def test_explained_variance_is_one_for_a_perfect_value_and_zero_for_a_blind_one() -> None:
    algorithm = impala(discount=0.0, reward_clipping="none")
    net = algorithm.network()
    batch = on_policy(net, make_batch(algorithm))
    torch.nn.init.zeros_(net.value.weight)
    assert algorithm.loss(net, batch)[1]["explained_variance"].item() == pytest.approx(0.0, abs=1e-5)
    net = algorithm.network()
    with torch.no_grad():  # the value must not see the reward that it is to predict
        net.value.weight[:, -1] = 0.0
    perfect = batch._replace(reward=torch.cat([batch.reward[:1], unrolled(net, batch)[1][:-1]]))
    assert algorithm.loss(net, perfect)[1]["explained_variance"].item() == pytest.approx(1.0, abs=1e-4)


def test_one_use_and_a_fixed_weight_are_one_plain_step_per_batch_bit_for_bit() -> None:
    algorithm = impala(net={"use_lstm": True, "normalize_obs": True})
    nets = [algorithm.network(), algorithm.network()]
    plain, other = algorithm.learning(nets[0]), ImpalaLearning(algorithm, nets[1])
    assert isinstance(plain, OneStep)
    for seed in range(4):
        one, two = (each.update(make_batch(algorithm, resets=0.2, seed=seed), 0) for each in (plain, other))
        assert one == two
    assert same(weights(nets[0]), weights(nets[1]))
    assert other.state()["batches"] == []


@pytest.mark.parametrize(("target", "grows"), [(1.09, True), (0.1, False)])
def test_the_weight_starts_as_configured_grows_below_the_target_and_shrinks_above(
    target: float, *, grows: bool
) -> None:
    algorithm = impala(entropy_cost=0.03, entropy_target=target, learning_rate=1e-6)
    net = algorithm.network()
    with torch.no_grad():
        net.policy.bias.copy_(torch.tensor([2.0, 0.0, 0.0]))  # far from uniform
    learning = algorithm.learning(net)
    void = make_batch(algorithm)._replace(mask=torch.zeros(T, B, dtype=torch.bool))
    learning.update(void, 0)
    found = [learning.update(make_batch(algorithm, seed=seed), 0).metrics for seed in range(4)]
    costs = [metrics["entropy_cost"].item() for metrics in found]
    assert 0.1 < found[0]["entropy"] < 1.09, "otherwise this test says nothing"
    assert costs[0] == pytest.approx(0.03), "also after a batch without a valid step"
    assert costs == sorted(set(costs), reverse=not grows)
    assert abs(costs[1] - costs[0]) == pytest.approx(0.01 * 0.03, rel=0.1), "a hundredth of where it started"


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
    ("env", "settings"),
    [
        (VECTORS, {"entropy_target": 1.2}),
        (PANEL, {"entropy_target": 2.5}),
        (REACH, {"entropy_target": -1.0, "entropy_cost": 0.0}),
    ],
)
def test_a_target_that_no_policy_reaches_is_refused(env: Any, settings: dict[str, Any]) -> None:
    with refused("impala"):
        algorithm_of("impala", env, **settings)
