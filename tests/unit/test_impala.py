"""IMPALA and A2C: their losses against returns worked out one by one, and an adaptive entropy weight."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy, unrolled, weights
from tests.build.errors import refused
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.impala.algorithm import ImpalaLearning
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.data.batch import Batch
from zerobeast.testing.small_run import same

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


def test_explained_variance_is_one_for_a_perfect_value_and_zero_for_a_blind_one() -> None:
    algorithm = impala(discount=0.0, reward_clipping="none", net={"last_action_reward": "never"})
    net = algorithm.network()
    batch = on_policy(net, make_batch(algorithm))
    perfect = batch._replace(reward=torch.cat([batch.reward[:1], unrolled(net, batch)[1][:-1]]))
    assert algorithm.loss(net, perfect)[1]["explained_variance"].item() == pytest.approx(1.0, abs=1e-4)
    torch.nn.init.zeros_(net.value.weight)
    assert algorithm.loss(net, batch)[1]["explained_variance"].item() == pytest.approx(0.0, abs=1e-5)


def test_one_use_and_a_fixed_weight_are_one_plain_step_per_batch_bit_for_bit() -> None:
    algorithm = impala(net={"core": "lstm", "normalize_obs": True})
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


@pytest.mark.parametrize(("env", "target", "cost"), [(VECTORS, 1.2, 0.01), (PANEL, 2.5, 0.01), (REACH, -1.0, 0.0)])
def test_a_target_that_no_policy_reaches_is_refused(env: EnvSpec, target: float, cost: float) -> None:
    with refused("impala"):
        algorithm_of("impala", env, entropy_target=target, entropy_cost=cost)


PLAIN = {"discount": 0.9, "entropy_cost": 0.03, "baseline_cost": 0.25}
a2c = partial(algorithm_of, "a2c")


def lambda_return(batch: Batch, values: Tensor, t: int, b: int, gamma: float, decay: float) -> float:
    """(1 - lambda) sum of lambda^(n-1) G^(n), the remaining weight on the longest, without a recursion."""
    returns, total, weight = [], 0.0, 1.0
    for n in range(t, T):
        total += weight * float(batch.reward[n + 1, b])
        weight *= gamma
        if batch.terminated[n + 1, b]:
            returns.append(total)
            break
        returns.append(total + weight * float(values[n + 1, b]))
        if batch.truncated[n + 1, b]:
            break
    shares = [(1 - decay) * decay**n for n in range(len(returns) - 1)] + [decay ** (len(returns) - 1)]
    return sum(share * each for share, each in zip(shares, returns, strict=True))


def reference(algorithm: Any, net: Any, batch: Batch, decay: float) -> dict[str, float]:
    """The loss and its parts as means over transitions, one by one, with torch's distributions."""
    logits, values = (entry.double() for entry in unrolled(net, batch))
    terms = []
    for t in range(T):
        for b in range(B):
            if not batch.mask[t, b]:
                continue
            if algorithm.env.action.kind == "box":
                mean, log_std = logits[t, b].chunk(2)
                middle, half = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
                policy: Any = Independent(Normal(middle + half * mean, half * log_std.exp()), 1)
            else:
                policy = Categorical(logits=logits[t, b])
            advantage = lambda_return(batch, values, t, b, PLAIN["discount"], decay) - values[t, b]
            pg = -policy.log_prob(batch.last_action[t + 1, b].double()) * advantage
            terms.append(torch.stack([pg, 0.5 * advantage**2, policy.entropy()]))
    pg, baseline, entropy = torch.stack(terms).mean(0).tolist()
    total = pg + PLAIN["baseline_cost"] * baseline - PLAIN["entropy_cost"] * entropy
    return {"pg_loss": pg, "baseline_loss": baseline, "entropy": entropy, "total": total}


@pytest.mark.parametrize("decay", [1.0, 0.8, 0.0])
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("env", [VECTORS, REACH], ids=["choices", "real actions"])
def test_the_loss_is_that_of_returns_worked_out_one_by_one(env: EnvSpec, *, core: str, decay: float) -> None:
    algorithm = a2c(env, net={"core": core}, trace_decay=decay, **PLAIN)
    net = algorithm.network()
    batch = on_policy(net, make_batch(algorithm, resets=0.4))
    assert batch.truncated.any()
    assert batch.terminated.any()
    loss, metrics = algorithm.loss(net, batch)
    expected = reference(algorithm, net, batch, decay)
    assert {name: metrics[name].item() for name in expected} == pytest.approx(expected, rel=1e-5)
    assert metrics["total"].item() == loss.item()


@pytest.mark.parametrize("lagging", [False, True], ids=["on policy", "behind"])
@pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
def test_loss_and_gradients_equal_those_of_impala(env: EnvSpec, *, lagging: bool) -> None:
    settings = {**PLAIN, "trace_decay": 0.8, "reduction": "mean", "reward_clipping": "none"}
    one, two = a2c(env, **settings), algorithm_of("impala", env, **settings)
    net = one.network()
    batch = make_batch(one, resets=0.3)
    batch = batch if lagging else on_policy(net, batch)
    found = [each.loss(net, batch) for each in (one, two)]
    gradients = [torch.autograd.grad(loss, list(net.parameters())) for loss, _ in found]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    for name in ("total", "pg_loss", "baseline_loss", "entropy"):
        torch.testing.assert_close(found[0][1][name], found[1][1][name], rtol=1e-4, atol=1e-6)
