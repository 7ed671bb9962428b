"""IMPALA: its loss, one update, how acting and learning line up, and that it learns."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.algo_fakes import (
    MINATAR,
    VECTORS,
    B,
    T,
    algorithm_of,
    ended,
    generator,
    make_batch,
    on_policy,
    two_ends,
    unrolled,
)
from zerobeast.common.algos.protocol import Batch
from zerobeast.common.nets.agent import StepInput
from zerobeast.common.nets.precision import autocast
from zerobeast.common.wire.specs import ActionSpec, EnvSpec

pytestmark = pytest.mark.unit

impala = partial(algorithm_of, "impala")


def test_one_update_with_plain_gradient_descent_is_w_minus_lr_times_grad() -> None:
    algorithm = impala(net={"use_lstm": True})
    net = algorithm.network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125)  # a power of two: the product is exact
    before = [parameter.detach().clone() for parameter in net.parameters()]
    algorithm.loss(net, make_batch(algorithm, resets=0.3))[0].backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for old, parameter in zip(before, net.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter, old - 0.125 * parameter.grad)


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("env", [VECTORS, MINATAR], ids=["vectors", "pictures"])
def test_every_parameter_gets_a_gradient(env: EnvSpec, *, use_lstm: bool) -> None:
    algorithm = impala(env, net={"use_lstm": use_lstm})
    net = algorithm.network()
    algorithm.loss(net, make_batch(algorithm))[0].backward()  # type: ignore[no-untyped-call]
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_the_loss_is_the_weighted_sum_of_its_terms_worked_out_by_hand() -> None:
    """One row, two on-policy steps, gamma 0.5: the second terminates."""
    algorithm = impala(discount=0.5, baseline_cost=0.25, entropy_cost=0.125, reward_clipping="none")
    net = algorithm.network()
    batch = make_batch(algorithm)
    batch = Batch(*(entry[:3, :1] if entry.shape[0] == T + 1 else entry[:2, :1] for entry in batch[:-3]), *batch[-3:])
    batch = batch._replace(
        reward=torch.tensor([[0.0], [2.0], [4.0]]),
        terminated=torch.tensor([[False], [False], [True]]),
        core_state=batch.core_state[:1],
        mask=torch.ones(2, 1, dtype=torch.bool),
        task=batch.task[:1],
    )
    batch = on_policy(net, batch)
    logits, values = (entry.squeeze(1).double() for entry in unrolled(net, batch))
    log_probs = logits.log_softmax(-1)
    target_1 = 4.0
    target_0 = 2.0 + 0.5 * target_1
    errors = torch.stack([target_0 - values[0], target_1 - values[1]])
    taken = log_probs[[0, 1], batch.last_action[1:, 0]]
    entropies = -(log_probs.exp() * log_probs).sum(-1)[:2]
    expected = -(taken * errors).sum() + 0.25 * 0.5 * errors.square().sum() - 0.125 * entropies.sum()
    loss, metrics = algorithm.loss(net, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["total"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["pg_loss"].item() == pytest.approx(-(taken * errors).sum().item(), rel=1e-5)
    assert metrics["baseline_loss"].item() == pytest.approx(0.5 * errors.square().sum().item(), rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(entropies.mean().item(), rel=1e-5)


@pytest.mark.parametrize("at", [2, T - 1], ids=["within", "at the end of the unroll"])
@pytest.mark.parametrize(
    ("terminated", "truncated", "bootstraps"), [(True, False, False), (False, True, True), (True, True, False)]
)
def test_only_a_truncated_step_learns_from_the_final_observation(
    at: int, *, terminated: bool, truncated: bool, bootstraps: bool
) -> None:
    algorithm = impala()
    net = algorithm.network()
    batch, other = two_ends(algorithm, terminated=terminated, truncated=truncated, at=at)
    loss, changed = algorithm.loss(net, batch)[0], algorithm.loss(net, other)[0]
    assert (loss.item() != changed.item()) == bootstraps


@pytest.mark.parametrize("truncated", [False, True])
def test_what_follows_an_end_does_not_reach_back_across_it(*, truncated: bool) -> None:
    algorithm = impala()
    net = algorithm.network()
    batch = ended(algorithm, terminated=not truncated, truncated=truncated, at=2)
    before = batch.mask.clone()
    before[3:] = False  # only what leads to the end counts
    batch = batch._replace(mask=before)
    other = batch._replace(obs=batch.obs.clone(), reward=batch.reward.clone())
    other.obs[4:] += 1.0
    other.reward[4:] += 1.0
    assert algorithm.loss(net, batch)[0].item() == algorithm.loss(net, other)[0].item()


def test_an_unroll_that_starts_on_a_final_observation_ignores_the_seam() -> None:
    algorithm = impala()
    net = algorithm.network()
    batch = make_batch(algorithm)
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    first[1] = True
    batch = batch._replace(first=first, mask=~first[1:])
    other = batch._replace(obs=batch.obs.clone(), last_action=batch.last_action.clone())
    other.obs[0] += 1.0
    other.last_action[1] = (other.last_action[1] + 1) % 3  # the action that was ignored
    assert algorithm.loss(net, batch)[0].item() == algorithm.loss(net, other)[0].item()


def test_masked_transitions_do_not_count() -> None:
    algorithm = impala(reduction="mean")
    net = algorithm.network()
    batch = make_batch(algorithm)
    batch.mask[:, 1:] = False
    alone = Batch(*(entry[:1] if entry.shape[0] == B else entry[:, :1] for entry in batch))
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
    perfect = batch._replace(reward=torch.cat([batch.reward[:1], unrolled(net, batch)[1][:-1]]))
    torch.nn.init.zeros_(net.value.weight)
    assert algorithm.loss(net, batch)[1]["explained_variance"].item() == pytest.approx(0.0, abs=1e-5)
    net = algorithm.network()
    with torch.no_grad():  # the value must not see the reward that it is to predict
        net.value.weight[:, -1] = 0.0
    perfect = batch._replace(reward=torch.cat([batch.reward[:1], unrolled(net, batch)[1][:-1]]))
    assert algorithm.loss(net, perfect)[1]["explained_variance"].item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("field", ["reward", "obs", "behaviour_logits"])
def test_what_is_not_a_number_shows_in_the_loss(field: str) -> None:
    algorithm = impala()
    net, batch = algorithm.network(), make_batch(algorithm)
    getattr(batch, field)[2, 1] = torch.nan
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
    """A bandit with three contexts, every pull an episode of its own step in one endless unroll."""
    bandit = EnvSpec("Bandit-v0", (3,), "<f4", ActionSpec.discrete(3))
    plain = {"optimizer": "adam", "epsilon": 1e-5, "learning_rate": 0.01, "reduction": "mean", "discount": 0.0}
    algorithm = impala(bandit, replay_share=replay_share, **plain)
    net, g = algorithm.network(), generator()
    learning = algorithm.learning(net)
    rows, answers = 16, torch.tensor([2, 0, 1])
    reward, action, core = torch.zeros(rows), torch.zeros(rows, dtype=torch.int64), net.initial_state(rows)
    nothing = torch.zeros(T + 1, rows, dtype=torch.bool)
    for _ in range(120):
        contexts = torch.randint(0, 3, (T + 1, rows), generator=g)
        obs = torch.nn.functional.one_hot(contexts, 3).float()
        actions, rewards, logits = [action], [reward], []
        for t in range(T):
            inputs = StepInput(obs[t][None], action[None], reward[None], nothing[0][None])
            act, core = algorithm.act(net, inputs, core, generator=g, greedy=False)
            action, reward = act.action.clone(), (act.action == answers[contexts[t]]).float()
            actions.append(action)
            rewards.append(reward)
            logits.append(act.logits.clone())
        batch = Batch(
            obs=obs,
            first=nothing,
            reward=torch.stack(rewards),
            terminated=nothing,
            truncated=nothing,
            last_action=torch.stack(actions),
            behaviour_logits=torch.stack(logits),
            value=torch.zeros(T, rows),
            policy_version=torch.zeros(T, rows, dtype=torch.int64),
            core_state=core,
            mask=~nothing[1:],
            task=torch.zeros(rows, dtype=torch.int64),
        )
        learning.update(batch, 0)
    assert torch.stack(rewards[1:]).mean() > 0.95
