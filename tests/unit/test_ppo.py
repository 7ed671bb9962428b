"""PPO: an update against one written out step by step, minibatches, early stopping, and running statistics."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy, unroll_net
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.algorithm import Samples
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.ops import optim

ppo = partial(algorithm_of, "ppo", epochs=3, minibatches=2, learning_rate=0.01, schedule="constant")


def updated(algorithm: Any, batch: Batch) -> tuple[PolicyAndValue, Any]:
    """The network after one update, and what the update reports."""
    torch.manual_seed(1)
    net = algorithm.network()
    return net, algorithm.learning(net).update(batch, 0)


def gae(batch: Batch, values: Tensor, gamma: float, decay: float) -> Tensor:
    """[T, B] advantages (Schulman et al. 2016, equation 16), backwards, with termination and truncation."""
    found = torch.zeros(T, B, dtype=torch.float64)
    for b in range(B):
        later = 0.0
        for t in reversed(range(T)):
            if not batch.mask[t, b]:
                later = 0.0
                continue
            beyond = 0.0 if batch.terminated[t + 1, b] else gamma * float(values[t + 1, b])
            delta = float(batch.reward[t + 1, b]) + beyond - float(values[t, b])
            later = delta + (0.0 if batch.terminated[t + 1, b] else gamma * decay * later)
            found[t, b] = later
    return found


def by_hand(algorithm: Any, batch: Batch) -> PolicyAndValue:
    """PPO2 on single transitions, as one would write it for one machine, with torch's distributions and clamp."""
    torch.manual_seed(1)
    c, net = algorithm.config.algorithm, algorithm.network()
    optimizer = optim.Adam(net.parameters(), lr=c.learning_rate, eps=c.epsilon)
    values = unroll_net(net, batch)[1]
    advantages = gae(batch, values, c.discount, c.trace_decay).float()
    returns = advantages + values[:-1]
    old = torch.distributions.Categorical(logits=batch.extras["logits"]).log_prob(batch.last_action[1:])
    places = [(t, b) for t in range(T) for b in range(B) if batch.mask[t, b]]
    valid = advantages[batch.mask]
    gains = (advantages - valid.mean()) / (valid.std(correction=0) + 1e-8)
    for _ in range(c.epochs):
        for part in torch.randperm(len(places)).tensor_split(c.minibatches):
            t, b = torch.tensor([places[i] for i in part]).unbind(1)
            entries = (batch.obs, batch.last_action, batch.reward, batch.first)
            inputs = StepInput(*(entry[t, b][None] for entry in entries))
            (logits, value), _ = net(inputs, torch.zeros(len(part), 0))
            policy = torch.distributions.Categorical(logits=logits[0])
            ratio = (policy.log_prob(batch.last_action[t + 1, b]) - old[t, b]).exp()
            gain = gains[t, b]
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - c.clip, 1 + c.clip) * gain).mean()
            loss = -surrogate + c.baseline_cost * 0.5 * (value[0] - returns[t, b]).square().mean()
            loss = loss - c.entropy_cost * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), c.max_grad_norm)
            optimizer.step()
    return net


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), two.parameters()))


def near(one: nn.Module, two: nn.Module) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("lagging", [False, True], ids=["on policy", "behind"])
def test_an_update_is_what_one_writes_out_by_hand(*, lagging: bool) -> None:
    algorithm = ppo(entropy_cost=0.02, trace_decay=0.9, discount=0.8, clip=0.1, vtrace=False)
    batch = make_batch(algorithm, resets=0.4)
    batch = batch if lagging else on_policy(algorithm.network(), batch)
    net, learned = updated(algorithm, batch)
    assert (learned.steps, learned.skipped, learned.changed) == (6, 0, True)
    near(net, by_hand(algorithm, batch))
    assert not same(net, algorithm.network())


@pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    ("name", "own"), [("a2c", {}), ("impact", {"batches": 1, "uses": 1}), ("impact", {"normalize_advantages": True})]
)
def test_one_epoch_over_one_on_policy_batch_equals_a_step_of_others(
    name: str, own: dict[str, Any], env: EnvSpec, *, core: str
) -> None:
    """Huang et al. 2022, "A2C is a special case of PPO", arXiv:2205.09123; and so it is of IMPACT."""
    shared = {"discount": 0.9, "trace_decay": 0.9, "entropy_cost": 0.03, "baseline_cost": 0.25}
    shared |= {"optimizer": "rmsprop_tf", "learning_rate": 0.1, "schedule": "constant", "max_grad_norm": 1e9}
    network = {"core": core}
    normalize = own.get("normalize_advantages", False)
    one = ppo(env, net=network, epochs=1, minibatches=1, normalize_advantages=normalize, **shared)
    other = algorithm_of(name, env, net=network, **shared, **own)
    batch = on_policy(one.network(), make_batch(one, resets=0.3))
    mine, theirs = updated(one, batch)[0], updated(other, batch)[0]
    near(mine, theirs)
    assert not same(mine, one.network())


@pytest.mark.parametrize(("rows", "minibatches", "steps"), [(B, 12, 12), (2, 12, 6), (1, 12, 3), (1, 1, 1)])
def test_minibatches_of_a_batch_with_few_rollouts_keep_their_size(rows: int, minibatches: int, steps: int) -> None:
    algorithm = ppo(minibatches=minibatches, epochs=1)
    assert updated(algorithm, make_batch(algorithm, rows=rows))[1].steps == steps


def test_whole_rollouts_stay_whole_and_one_without_a_valid_step_is_left_out() -> None:
    mask = torch.ones(T, B, dtype=torch.bool)
    mask[:, 2], mask[1:, 0] = False, False
    place, rows = torch.arange(T * B).view(T, B), torch.arange(B)
    entries = dict.fromkeys(Samples._fields, place) | {"inputs": StepInput(*[place] * 4), "mask": mask}
    found = list(Samples(**entries | {"core_state": rows[:, None]}).minibatches(2, 2))
    assert sorted(row for part in found for [row] in part.core_state.tolist()) == [0, 1, 3]
    for part in found:
        assert torch.equal(part.values, torch.arange(T)[:, None] * B + part.core_state[:, 0])
        assert torch.equal(part.mask, mask[:, part.core_state[:, 0]])


def test_the_rest_of_a_batch_is_left_out_once_the_policy_has_moved_too_far() -> None:
    batch = make_batch(ppo())
    free = updated(ppo(epochs=20, learning_rate=0.05), batch)[1]
    held = updated(ppo(epochs=20, learning_rate=0.05, target_kl=0.02), batch)[1]
    assert free.steps == 40
    assert 1 <= held.steps < 40
    assert held.metrics["kl"] < 0.02 < free.metrics["kl"]


def test_with_vtrace_a_lagging_batch_is_corrected_and_another_is_not_touched() -> None:
    plain, corrected = ppo(vtrace=False), ppo()
    lagging = make_batch(plain, resets=0.3)
    current = on_policy(plain.network(), lagging)
    assert not same(*(updated(each, lagging)[0] for each in (plain, corrected)))
    near(*(updated(each, current)[0] for each in (plain, corrected)))


def test_the_value_clip_limits_how_far_values_move() -> None:
    batch = make_batch(ppo())
    settings = {"epochs": 30, "baseline_cost": 1.0, "max_grad_norm": 1e9, "minibatches": 1}
    before = unroll_net(ppo().network(), batch)[1][:-1]
    moved = {}
    for clip in (0.0, 0.05):
        net, _ = updated(ppo(value_clip=clip, **settings), batch)
        moved[clip] = (unroll_net(net, batch)[1][:-1] - before).abs().mean().item()
    assert moved[0.05] < 0.5 * moved[0.0]


def test_rewards_that_are_clipped_count_in_full_in_the_scale_of_returns() -> None:
    algorithm = ppo(normalize_returns=True, discount=0.0, trace_decay=0.0, vtrace=False)
    learning, seen = algorithm.learning(algorithm.network()), []
    for seed in range(40):  # rewards of 0.1 are common, and one in 200 is 1
        batch = make_batch(algorithm, seed=seed)
        drawn = torch.rand(T + 1, B, generator=torch.Generator().manual_seed(seed))
        batch = batch._replace(reward=(drawn < 0.3) * 0.1 + (drawn > 0.995) * 0.9)
        seen.append(batch.reward[1:][batch.mask])
        learning.update(batch, 0)
    deviation = learning.state()["return_scale"]["variance"].sqrt().item()
    assert deviation == pytest.approx(torch.cat(seen).std(correction=0).item(), rel=1e-3)
    assert torch.cat(seen).max() > 10 * deviation  # so that the largest were clipped


def test_a_minibatch_that_is_not_finite_is_left_out_and_counted() -> None:
    algorithm = ppo(minibatches=T * B, epochs=1, normalize_advantages=False, vtrace=False)
    batch = make_batch(algorithm)
    batch.extras["logits"][2, 1] = math.nan
    net, learned = updated(algorithm, batch)
    assert (learned.steps, learned.skipped, learned.changed) == (T * B - 1, 1, True)
    assert all(parameter.isfinite().all() for parameter in net.parameters())
    assert math.isfinite(learned.loss)
    assert learned.metrics["pg_loss"].isfinite()
