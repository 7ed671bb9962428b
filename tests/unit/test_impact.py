"""IMPACT: its loss against one written out in loops and against PPO's and IMPALA's, its target, and its old batches."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.algos.descent import Descent, Step
from common.algos.impact.learning import ImpactLearning, adapted
from common.algos.impact.loss import log_ratio, loss
from common.algos.impala.loss import loss as impala_loss
from common.algos.ppo.loss import loss as ppo_loss
from common.algos.ppo.samples import Samples
from common.algos.protocol import Batch
from common.algos.returns import discounts
from common.nets.agent import AgentNet, AgentOutput, StepInput
from common.ops.vtrace import unweighted_advantages, vtrace
from common.specs import EnvSpec
from tests.algo_fakes import (
    PANEL,
    REACH,
    VECTORS,
    B,
    T,
    algorithm_of,
    ended,
    generator,
    make_batch,
    on_policy,
    unrolled,
)

pytestmark = pytest.mark.unit

ENVS = pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
ENDLESS = 1e30  #: a clip that never acts
QUICK = {"learning_rate": 0.01, "schedule": "constant"}


def impact(env: EnvSpec = VECTORS, *, net: dict[str, Any] | None = None, **settings: Any) -> Any:
    return algorithm_of("impact", env, net=net, **{**QUICK, **settings})


class Table(nn.Module):
    """Logits and values of T + 1 steps as parameters, in double precision, behind the interface of a network."""

    def __init__(self, n_logits: int, seed: int = 5) -> None:
        super().__init__()
        g = generator(seed)
        self.logits = nn.Parameter(0.5 * torch.randn(T + 1, B, n_logits, generator=g, dtype=torch.float64))
        self.values = nn.Parameter(torch.randn(T + 1, B, generator=g, dtype=torch.float64))

    def forward(self, inputs: StepInput, core: Tensor) -> tuple[AgentOutput, Tensor]:
        steps = slice(T, None) if len(inputs.obs) == 1 else slice(len(inputs.obs))
        return AgentOutput(self.logits[steps], self.values[steps]), core

    def gradients(self, total: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(total, [self.logits, self.values]))


def doubled(algorithm: Any, *, resets: float = 0.3) -> Batch:
    batch = make_batch(algorithm, resets=resets)
    batch = batch._replace(behaviour_logits=0.5 * batch.behaviour_logits)
    return Batch._make(entry.double() if entry.is_floating_point() else entry for entry in batch)


def others(n_logits: int) -> Tensor:
    """Logits [T, B, A] of somebody else."""
    return 0.5 * torch.randn(T, B, n_logits, generator=generator(9), dtype=torch.float64)


def assert_same(one: list[Tensor], two: list[Tensor]) -> None:
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
        assert mine.any()


def weights(net: nn.Module) -> list[Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
def test_the_ratio_is_the_truncated_weight_of_the_paper(rho: float) -> None:
    pi, target, mu = torch.rand(3, 1000, generator=generator(), dtype=torch.float64)
    expected = (mu / target).clamp(max=rho) * pi / mu
    torch.testing.assert_close(log_ratio(pi.log(), target.log(), mu.log(), rho).exp(), expected, rtol=1e-12, atol=0)
    assert (mu / target > rho).any()
    assert (mu / target < rho).any()


def test_without_a_truncation_the_behaviour_drops_out_of_the_ratio() -> None:
    pi, target, mu = torch.rand(3, 1000, generator=generator(), dtype=torch.float64).log()
    assert torch.equal(log_ratio(pi, target, mu, ENDLESS), pi - target)


def by_hand(config: Any, net: Table, batch: Batch, target_logits: Tensor, kl_cost: float) -> float:
    """The loss of discrete actions, one float after the other."""

    def log_probs(logits: Tensor) -> list[float]:
        most = max(logits.tolist())
        log_sum = most + math.log(sum(math.exp(logit - most) for logit in logits.tolist()))
        return [logit - log_sum for logit in logits.tolist()]

    total, count = 0.0, 0
    for b in range(B):
        value = net.values[:, b].tolist()
        correction = 0.0  # of the value of the step after
        for t in reversed(range(T)):
            if not batch.mask[t, b]:
                correction = 0.0
                continue
            taken = int(batch.last_action[t + 1, b])
            pi, aim, mu = (log_probs(of[t, b]) for of in (net.logits, target_logits, batch.behaviour_logits))
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
def test_the_loss_is_what_one_writes_out_in_loops(rho: float, trace_decay: float, kl_cost: float) -> None:
    algorithm = impact(rho=rho, trace_decay=trace_decay, clip=0.3, discount=0.75, rho_bar=1.2, c_bar=0.9)
    net, batch, target = Table(3), doubled(algorithm), others(3)
    config = algorithm.config.impact
    total, metrics = loss(config, algorithm.family, net, batch, target, kl_cost=kl_cost)  # type: ignore[arg-type]
    assert total.item() == pytest.approx(by_hand(config, net, batch, target, kl_cost), rel=1e-10)
    assert not batch.mask.all()
    assert 0 < metrics["clipped"] < 1


@ENVS
@pytest.mark.parametrize("normalize", [False, True])
def test_with_the_behaviour_as_target_the_loss_is_that_of_ppo(env: EnvSpec, *, normalize: bool) -> None:
    shared = {"discount": 0.75, "trace_decay": 0.8, "clip": 0.2, "entropy_cost": 0.02, "baseline_cost": 0.3}
    shared["normalize_advantages"] = normalize
    algorithm, ppo = impact(env, **shared), algorithm_of("ppo", env, **shared).config.ppo
    n_logits = algorithm.policy.n_logits
    net, batch = Table(n_logits), doubled(algorithm)
    mine, _ = loss(algorithm.config.impact, algorithm.family, net, batch, batch.behaviour_logits, kl_cost=0.0)  # type: ignore[arg-type]

    actions, values, gammas = batch.last_action[1:], net.values.detach(), discounts(batch, 0.75)
    of = {"discounts": gammas, "rewards": batch.reward[1:], "values": values, "mask": batch.mask, "trace_decay": 0.8}
    vs = vtrace(log_rhos=torch.zeros_like(batch.reward[1:]), **of).vs  # type: ignore[arg-type]
    samples = Samples(
        *(entry[:-1] for entry in (batch.obs, batch.last_action, batch.reward, batch.first)),
        actions=actions,
        behaviour=algorithm.family.of(batch.behaviour_logits).log_prob(actions),
        logits=batch.behaviour_logits,
        values=values[:-1],
        targets=vs,
        advantages=unweighted_advantages(vs=vs, **of),  # type: ignore[arg-type]
        mask=batch.mask,
        core_state=batch.core_state,
    )
    theirs, _ = ppo_loss(ppo, algorithm.family, net, samples)  # type: ignore[arg-type]
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)
    assert_same(net.gradients(mine), net.gradients(theirs))


@ENVS
def test_with_the_policy_as_target_and_no_clip_the_gradient_is_that_of_impala(env: EnvSpec) -> None:
    shared = {"discount": 0.9, "entropy_cost": 0.02, "baseline_cost": 0.3, "reward_clipping": "none"}
    algorithm = impact(env, rho=1.0, clip=ENDLESS, **shared)
    impala = algorithm_of("impala", env, reduction="mean", **shared).config.impala
    net, batch = Table(algorithm.policy.n_logits), doubled(algorithm)
    mine, _ = loss(algorithm.config.impact, algorithm.family, net, batch, net.logits[:-1].detach(), kl_cost=0.0)  # type: ignore[arg-type]
    theirs, metrics = impala_loss(impala, algorithm.family, net, batch)  # type: ignore[arg-type]
    assert 0 < metrics["rho_clipped"] < 1, "both sides of the truncation"
    assert_same(net.gradients(mine), net.gradients(theirs))


class Watched(Descent):
    """Notes what the target is before each step, and what the policy is after it."""

    def __init__(self, algorithm: Any, net: AgentNet) -> None:
        super().__init__(algorithm.config, algorithm.config.impact, net)
        self._net, self.before, self.after = net, list[list[Tensor]](), [weights(net)]
        self.target: Callable[[], dict[str, Tensor]] = dict

    def step(self, loss: Tensor, agent_steps: int) -> Step:
        self.before.append([value.clone() for value in self.target().values()])
        step = super().step(loss, agent_steps)
        self.after.append(weights(self._net))
        return step


@pytest.mark.parametrize(("batches", "uses"), [(1, 1), (1, 3), (3, 2), (4, 2), (2, 3)])
def test_the_target_is_the_same_bits_for_n_times_k_steps_and_then_the_policy(batches: int, uses: int) -> None:
    algorithm = impact(batches=batches, uses=uses)
    net = algorithm.network()
    watched = Watched(algorithm, net)
    learning = ImpactLearning(algorithm.config.impact, algorithm.family, net, watched)
    watched.target = lambda: learning.state()["target"]["weights"]
    for seed in range(12):
        learning.update(make_batch(algorithm, seed=seed), 0)
    period = batches * uses
    assert len(watched.before) > period
    for step, target in enumerate(watched.before):
        assert same(target, watched.after[step // period * period]), step
    assert not same(watched.after[0], watched.after[1])


def test_what_the_target_says_of_a_batch_is_asked_once_per_target(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = impact(batches=4, uses=2)
    net = algorithm.network()
    learning, asked, forward = algorithm.learning(net), list[float](), AgentNet.forward

    def counted(self: AgentNet, inputs: StepInput, core: Tensor) -> tuple[AgentOutput, Tensor]:
        if self is not net:
            asked.append(float(inputs.obs[0, 0, 0]))
        return forward(self, inputs, core)

    monkeypatch.setattr(AgentNet, "forward", counted)
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
    assert learned.metrics["rho_mean"].item() == pytest.approx(1.0, abs=1e-5)
    assert learned.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    elsewhere = batch._replace(core_state=batch.core_state + 1)
    learned = algorithm.learning(algorithm.network()).update(elsewhere, 0)
    assert learned.metrics["rho_mean"].item() != pytest.approx(1.0, abs=1e-4)


def test_an_arrival_is_worth_k_steps_once_there_are_n_batches() -> None:
    algorithm = impact(batches=4, uses=3)
    learning = algorithm.learning(algorithm.network())
    found = [learning.update(make_batch(algorithm, seed=seed), 0) for seed in range(6)]
    assert [learned.steps for learned in found] == [1, 2, 3, 3, 3, 3]
    assert all(learned.changed and not learned.skipped for learned in found)


def test_a_batch_that_is_used_again_does_not_see_its_rows_written_again() -> None:
    algorithm = impact(batches=2, uses=2)
    nets = []
    for rewritten in (False, True):
        net = algorithm.network()
        learning = algorithm.learning(net)
        batch = make_batch(algorithm)
        learning.update(batch, 0)
        if rewritten:
            batch.reward.fill_(7.0)
        learning.update(make_batch(algorithm, seed=2), 0)
        nets.append(weights(net))
    assert same(*nets)


@pytest.mark.parametrize("at", [2, T - 1], ids=["within", "at the end of the unroll"])
@pytest.mark.parametrize(("terminated", "bootstraps"), [(True, False), (False, True)])
def test_only_a_truncated_step_learns_from_the_final_observation(
    at: int, *, terminated: bool, bootstraps: bool
) -> None:
    algorithm = impact(batches=1)
    batch = ended(algorithm, terminated=terminated, truncated=not terminated, at=at)
    other = batch._replace(obs=batch.obs.clone())
    other.obs[at + 1] += 1.0
    assert same(updated(algorithm, batch), updated(algorithm, other)) != bootstraps


def updated(algorithm: Any, *batches: Batch) -> list[Tensor]:
    """The weights after these batches."""
    net = algorithm.network()
    learning = algorithm.learning(net)
    for batch in batches:
        learning.update(batch, 0)
    return weights(net)


@pytest.mark.parametrize("use_lstm", [False, True])
def test_void_transitions_and_those_beyond_the_budget_change_nothing(*, use_lstm: bool) -> None:
    algorithm = impact(net={"use_lstm": use_lstm}, batches=1, kl_cost=1.0)
    batch = make_batch(algorithm)
    batch.mask[:, 1:] = False
    batch.mask[4:, 0] = False
    other = batch._replace(reward=batch.reward.clone(), behaviour_logits=batch.behaviour_logits.clone())
    other.reward[5:] += 9.0
    other.behaviour_logits[4:] = 7.0
    other.behaviour_logits[:, 1:] *= 2.0
    assert same(updated(algorithm, batch), updated(algorithm, other))
    assert not same(updated(algorithm, batch), weights(algorithm.network()))


def test_a_batch_that_is_not_finite_is_left_out_and_counted_at_every_use() -> None:
    algorithm = impact(batches=2, uses=2)
    net = algorithm.network()
    learning = algorithm.learning(net)
    bad = make_batch(algorithm)
    bad.behaviour_logits[...] = math.nan
    learned = learning.update(bad, 0)
    assert (learned.steps, learned.skipped, learned.changed) == (0, 1, False)
    assert same(weights(net), weights(algorithm.network()))
    learned = learning.update(make_batch(algorithm, seed=2), 0)
    assert (learned.steps, learned.skipped, learned.changed) == (1, 1, True)
    assert learning.state()["target"]["updates"] == 1, "a step that was not taken brings no new target"
    assert all(value.isfinite().all() for value in weights(net))


@pytest.mark.parametrize(("kl", "expected"), [(0.09, 3.0), (0.05, 2.0), (0.03, 2.0), (0.019, 1.0)])
def test_the_weight_of_the_divergence_grows_above_twice_its_aim_and_shrinks_below_half(
    kl: float, expected: float
) -> None:
    assert adapted(2.0, kl, 0.04) == expected


@pytest.mark.parametrize(("kl_target", "scale"), [(1e-9, 1.5**2), (1e9, 0.5**2)])
def test_the_weight_of_the_divergence_adapts_when_the_target_is_replaced(kl_target: float, scale: float) -> None:
    algorithm = impact(batches=2, uses=1, kl_cost=0.5, kl_target=kl_target)
    learning = algorithm.learning(algorithm.network())
    found = [learning.update(make_batch(algorithm, seed=seed), 0).metrics["kl_cost"].item() for seed in range(5)]
    assert found == [0.5, 0.5, *[0.5 * math.sqrt(scale)] * 2, 0.5 * scale]
    assert learning.state()["kl_scale"] == scale


def test_a_policy_that_pays_for_its_divergence_stays_near_the_target() -> None:
    batch = make_batch(impact())
    before = unrolled(impact().network(), batch)[0]
    moved = {}
    for kl_cost in (0.0, 50.0):
        algorithm = impact(batches=1, uses=30, kl_cost=kl_cost, kl_target=1.0)
        net = algorithm.network()
        algorithm.learning(net).update(batch, 0)
        after = unrolled(net, batch)[0]
        moved[kl_cost] = algorithm.family.of(before).kl(algorithm.family.of(after)).mean().item()
    assert moved[50.0] < 0.2 * moved[0.0]


def test_observations_join_the_statistics_once_and_the_targets_with_its_weights() -> None:
    algorithm = impact(net={"normalize_obs": True}, batches=2, uses=2)
    net = algorithm.network()
    learning = algorithm.learning(net)
    batch = make_batch(algorithm)
    batch = batch._replace(obs=batch.obs * 5 + 3)
    fresh = weights(net.norm)
    learning.update(batch, 0)
    torch.testing.assert_close(net.norm.mean, batch.obs[:-1].mean((0, 1)))
    target = learning.state()["target"]["weights"]
    assert same([target[f"norm.{name}"] for name in net.norm.state_dict()], fresh)
    for seed in range(3):
        learning.update(make_batch(algorithm, seed=seed), 0)
    assert not same([target[f"norm.{name}"] for name in net.norm.state_dict()], fresh)
