"""IMPALA and A2C: losses against returns worked out one by one, an adaptive entropy weight, old rollouts in batches."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy, unroll_net, weights
from tests.build.errors import refuses
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.algos.impala import algorithm as module
from zerobeast.rl.algos.impala.algorithm import ImpalaLearning, OldRollouts
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.rl.ops.frames import stack_frames
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.testing.small_run import are_same

impala = partial(algorithm_of, "impala", learning_rate=0.01, schedule="constant")


def test_explained_variance_is_one_for_a_perfect_value_and_zero_for_a_blind_one() -> None:
    algorithm = impala(discount=0.0, reward_clipping="none", net={"last_action_reward": "never"})
    net = algorithm.network()
    batch = on_policy(net, make_batch(algorithm))
    perfect = batch._replace(reward=torch.cat([batch.reward[:1], unroll_net(net, batch)[1][:-1]]))
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
    assert are_same(weights(nets[0]), weights(nets[1]))
    assert other.state()["batches"] == []


@pytest.mark.parametrize(("target", "grows"), [(1.09, True), (0.1, False)])
def test_a_weight_starts_as_configured_grows_below_the_target_and_shrinks_above(target: float, *, grows: bool) -> None:
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
    assert not are_same(weights(net), weights(after.network()))


@pytest.mark.parametrize(("env", "target", "cost"), [(VECTORS, 1.2, 0.01), (PANEL, 2.5, 0.01), (REACH, -1.0, 0.0)])
def test_a_target_that_no_policy_reaches_is_refused(env: EnvSpec, target: float, cost: float) -> None:
    with refuses("impala"):
        algorithm_of("impala", env, entropy_target=target, entropy_cost=cost)


PLAIN = {"discount": 0.9, "entropy_cost": 0.03, "baseline_cost": 0.25, "reward_scale": 2.0}
a2c = partial(algorithm_of, "a2c")


def lambda_return(batch: Batch, values: Tensor, t: int, b: int, gamma: float, decay: float) -> float:
    """(1 - lambda) sum of lambda^(n-1) G^(n), the remaining weight on the longest, without a recursion."""
    returns, total, weight = [], 0.0, 1.0
    for n in range(t, T):
        total += weight * min(1.0, max(-1.0, 2.0 * float(batch.reward[n + 1, b])))
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
    logits, values = (entry.double() for entry in unroll_net(net, batch))
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
    algorithm = a2c(env, net={"core": core}, trace_decay=decay, reward_clipping="abs_one", **PLAIN)
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
    settings = {**PLAIN, "trace_decay": 0.8, "reduction": "mean", "reward_clipping": "abs_one"}
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


K = 3
STACKED = EnvSpec("Stacked-v0", ArraySpace.box((5,)), ArraySpace.discrete(3), frame_stack=K)
old_rollouts = partial(OldRollouts, device=torch.device("cpu"))


def numbered(algorithm: Any, first: int, *, rows: int = B, steps: int = T) -> Batch:
    """Random rows, each with a number of its own as its first reward, from `first` on."""
    batch = make_batch(algorithm, seed=first, rows=rows, steps=steps)
    batch.reward[0] = torch.arange(first, first + rows)
    return batch._replace(task=torch.arange(rows))


def numbers(batch: Batch) -> list[int]:
    return [int(number) for number in batch.reward[0]]


def alone(batch: Batch, at: int) -> Batch:
    """One row, taken field by field, to be independent of how rows are picked."""
    whole = {"core_state": batch.core_state, "task": batch.task, "origin": batch.origin}
    steps: Batch = tree_map(lambda entry: entry[:, at : at + 1], batch._replace(**dict.fromkeys(whole, batch.mask)))
    return steps._replace(**{name: entry[at : at + 1] for name, entry in whole.items()})


def with_stacks(algorithm: Any, first: int) -> Batch:
    """Like `numbered`, but with stacks of K frames in which episodes begin."""
    batch = numbered(algorithm, first)
    begins = torch.rand(T + 1, B, generator=torch.Generator().manual_seed(first)) < 0.3
    frames = torch.randn(B, T + K, *algorithm.env.obs.shape)
    return batch._replace(obs=stack_frames(frames, begins.T, K), first=begins)


def seen(learning: Any, batch: Batch) -> list[Batch]:
    """Do one update; returns the batch that the loss of each step was computed from."""
    found, real = list[Batch](), module.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loss", lambda *args, **more: (found.append(args[3]), real(*args, **more))[1])
        learning.update(batch, 0)
    return found


@pytest.mark.parametrize("settings", [{"replay_share": 0.5}, {"uses": 2, "batches": 2}], ids=["replay", "uses"])
def test_held_batches_store_each_frame_once_and_are_learned_from_unchanged(settings: dict[str, Any]) -> None:
    algorithm = impala(STACKED, net={"core": "lstm"}, **settings)
    learning = algorithm.learning(algorithm.network())
    batches = [with_stacks(algorithm, first) for first in (0, 4)]
    kept = [batch.copy() for batch in batches]
    learning.update(batches[0], 0)
    assert kept[0].core_state.any()
    for entry in leaves(batches[0]):
        entry.zero_()  # the caller reuses its memory
    state = learning.state()
    [held] = state["batches"] or state["replay"]["held"]
    assert held["obs"].shape == (T + K, B, *STACKED.obs.shape)
    found = seen(learning, batches[1])
    by_number = {int(each.reward[0, at]): alone(each, at) for each in kept for at in range(B)}
    assert any(number < B for each in found for number in numbers(each)), "an old one is among them"
    for each in found:
        for at, number in enumerate(numbers(each)):
            assert are_same(leaves(alone(each, at)), leaves(by_number[number]))
    again = algorithm.learning(algorithm.network())
    again.load(state)
    assert all(are_same(leaves(one), leaves(two)) for one, two in zip(seen(again, batches[1]), found, strict=True))


@pytest.mark.parametrize(("share", "old"), [(0.5, 4), (0.2, 1), (0.9, 36)])
def test_the_share_is_of_the_whole_batch_and_the_new_rows_are_all_there(share: float, old: int) -> None:
    algorithm, replay = impala(), old_rollouts(share, 100, seed=1)
    assert numbers(replay.mix(numbered(algorithm, 0))) == [0, 1, 2, 3], "there is nothing old yet"
    mixed = numbers(replay.mix(numbered(algorithm, 4)))
    assert mixed[:B] == [4, 5, 6, 7]
    assert len(mixed) == B + old
    assert set(mixed[B:]) <= {0, 1, 2, 3}, "a batch does not meet itself"
    assert numbers(replay.mix(numbered(algorithm, 8, steps=T + 2))) == [8, 9, 10, 11], "of another length"


def test_a_restart_keeps_the_remainder_of_rounding_and_with_less_room_the_newest() -> None:
    algorithm, replay, resumed = impala(), *(old_rollouts(0.1, 100, seed=1) for _ in range(2))
    replay.mix(numbered(algorithm, 0))  # leaves 0.44 of a row over, so that the next batch gets one
    resumed.load(replay.state())
    sizes = [each.mix(numbered(algorithm, 4)).mask.shape[1] - B for each in (replay, resumed)]
    assert sizes == [1, 1]
    smaller = old_rollouts(0.75, 3, seed=1)
    smaller.load(replay.state())
    assert set(numbers(smaller.mix(numbered(algorithm, 8)))[B:]) == {5, 6, 7}


def test_the_oldest_leave_first_and_the_rest_is_drawn_with_equal_chances() -> None:
    algorithm, replay = impala(), old_rollouts(0.5, 10, seed=1)
    drawn: Counter[int] = Counter()
    for first in range(0, 4000, B):
        mixed = numbers(replay.mix(numbered(algorithm, first, steps=1)))
        drawn.update(first - number for number in mixed[B:] if first >= 12)
    expected = sum(drawn.values()) / 10
    assert set(drawn) == set(range(1, 11)), "the ten before this batch"
    chi_squared = sum((count - expected) ** 2 / expected for count in drawn.values())
    assert chi_squared < 27.9, "nine degrees of freedom: one seed in a thousand"


def test_one_step_on_the_mixture_is_one_step_on_the_sum_of_the_losses_of_its_rows() -> None:
    algorithm = impala(replay_share=0.5)
    config, new, old = algorithm.config, numbered(algorithm, 4), numbered(algorithm, 0)
    net, other = algorithm.network(), algorithm.network()
    learning, descent = algorithm.learning(net), GradientDescent(config, config.algorithm, other.parameters())
    learning.update(old, 0)
    descent.step(algorithm.loss(other, old)[0], 0)
    [mixed] = seen(learning, new)
    before = weights(other)
    losses = [algorithm.loss(other, alone(old, pick))[0] for pick in numbers(mixed)[B:]]
    descent.step(algorithm.loss(other, new)[0] + sum(losses), 0)
    for first, one, two in zip(before, weights(net), weights(other), strict=True):
        torch.testing.assert_close(one - first, two - first, rtol=1e-3, atol=1e-6)
        assert not torch.equal(one, first)
