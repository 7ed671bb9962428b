"""IMPALA: its loss, one update, how acting and learning line up, and that it learns."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.build.batches import MINATAR, B, T, algorithm_of, bandit, generator, make_batch, on_policy, unrolled
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.nets.precision import autocast

impala = partial(algorithm_of, "impala")


def test_masked_transitions_do_not_count() -> None:
    algorithm = impala(reduction="mean")
    net = algorithm.network()
    batch = make_batch(algorithm)
    batch.mask[:, 1:] = False
    alone = batch.pick(torch.tensor([0]))
    (masked, metrics), (single, single_metrics) = algorithm.loss(net, batch), algorithm.loss(net, alone)
    torch.testing.assert_close(masked, single)
    assert metrics["valid_fraction"] == 1 / B
    for name in set(metrics) - {"valid_fraction"}:
        torch.testing.assert_close(metrics[name], single_metrics[name], msg=name)


def test_a_batch_beyond_the_budget_has_no_loss_no_gradient_and_finite_metrics() -> None:
    algorithm = impala(reduction="mean")
    net = algorithm.network()
    loss, metrics = algorithm.loss(net, make_batch(algorithm)._replace(mask=torch.zeros(T, B, dtype=torch.bool)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0.0
    assert all(metric.isfinite() for metric in metrics.values())
    assert not any(parameter.grad.any() for parameter in net.parameters() if parameter.grad is not None)


def test_rewards_are_clipped_for_the_targets_only_when_asked() -> None:
    losses = {}
    for clipping in ("abs_one", "none"):
        algorithm = impala(reward_clipping=clipping)
        net, batch = algorithm.network(), make_batch(algorithm)
        for scale in (1.0, 50.0):
            batch = batch._replace(reward=torch.full_like(batch.reward, scale))
            losses[clipping, scale] = algorithm.loss(net, batch)[0].item()
    assert losses["abs_one", 1.0] == losses["abs_one", 50.0] == losses["none", 1.0]
    assert losses["none", 50.0] != losses["none", 1.0]


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


@pytest.mark.parametrize("field", ["reward", "obs", "logits"])
def test_a_nan_in_the_batch_shows_in_the_loss(field: str) -> None:
    algorithm = impala()
    net, batch = algorithm.network(), make_batch(algorithm)
    (batch.extras | batch._asdict())[field][2, 1] = torch.nan
    loss, metrics = algorithm.loss(net, batch)
    assert loss.isnan()
    assert metrics["total"].isnan()


def test_bfloat16_stops_at_the_networks_heads() -> None:
    algorithm = impala(MINATAR, net={"use_lstm": True})
    net, batch = algorithm.network(), make_batch(algorithm, resets=0.2)
    exact = algorithm.loss(net, batch)[0]
    with autocast(torch.device("cpu"), torch.bfloat16):
        loss, metrics = algorithm.loss(net, batch)
    assert {loss.dtype, *(metric.dtype for metric in metrics.values())} == {torch.float32}
    torch.testing.assert_close(loss, exact, rtol=0.03, atol=0.0)


def test_metrics_are_detached_scalars() -> None:
    algorithm = impala()
    loss, metrics = algorithm.loss(algorithm.network(), make_batch(algorithm))
    assert loss.requires_grad
    assert {"total", "pg_loss", "baseline_loss", "entropy", "behaviour_kl", "explained_variance"} <= set(metrics)
    assert all(metric.shape == () and not metric.requires_grad for metric in metrics.values())


@pytest.mark.parametrize("replay_share", [0.0, 0.5])
def test_it_learns_which_action_each_context_rewards(replay_share: float) -> None:
    env = EnvSpec("Bandit-v0", ArraySpace.box((3,)), ArraySpace.discrete(3))
    plain = {"optimizer": "adam", "epsilon": 1e-5, "learning_rate": 0.01, "reduction": "mean", "discount": 0.0}
    algorithm = impala(env, replay_share=replay_share, **plain)
    net, g = algorithm.network(), generator()
    learning, answers, any_batch = algorithm.learning(net), torch.tensor([2, 0, 1]), make_batch(algorithm, rows=16)
    for _ in range(120):
        contexts = torch.randint(0, 3, (T + 1, 16), generator=g)
        batch = any_batch._replace(obs=torch.nn.functional.one_hot(contexts, 3).float())
        batch = bandit(algorithm, net, batch, answers[contexts[:-1]], g)
        learning.update(batch, 0)
    assert batch.reward[1:].mean() > 0.95
