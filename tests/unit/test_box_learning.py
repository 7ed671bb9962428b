"""How DDPG, TD3 and SAC learn: each against its update written out, and what they do alike."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from tests.build.batches import ONES, REACH, N, learner, transitions, weights
from tests.build.control import assert_same_layers, control, descend, follow, mlp, of_critics, of_policy, q_of, units_of
from zerobeast.rl.algos.sac.algorithm import draw
from zerobeast.rl.ops import optim
from zerobeast.testing.small_run import ENVS, SmallRun, T, are_same


def test_ddpg_equals_its_update_written_out(tmp_path: Path) -> None:
    own = {"learning_rate": 1e-2, "policy_rate": 0.5, "target_rate": 0.1, "priority_exponent": 0.5}
    net, learning = learner(control(tmp_path, "ddpg", **own))
    policy, policy_target = of_policy(net.mlp), of_policy(net.mlp)
    [critic], [critic_target] = of_critics(learning.parts["critics"]), of_critics(learning.parts["critics_target"].copy)
    critic_adam, policy_adam = optim.Adam(critic, 1e-2), torch.optim.Adam(policy, 1e-2 / 2)
    for seed in range(3):
        batch, importance = transitions(seed, REACH), torch.rand(N)
        updated = learning.update(batch, importance, 0)
        obs, later = batch.inputs.obs[0], batch.next_inputs.obs[0]
        next_values = q_of(critic_target, later, torch.tanh(mlp(later, policy_target)))
        errors = q_of(critic, obs, units_of(batch.action)) - (batch.reward + batch.discount * next_values).detach()
        torch.testing.assert_close(updated.priorities, errors.abs().detach(), rtol=1e-3, atol=1e-4)
        descend(critic_adam, (importance * errors**2 / 2).mean())
        descend(policy_adam, -q_of(critic, obs, torch.tanh(mlp(obs, policy))).mean())
        follow(critic_target, critic, 0.1)
        follow(policy_target, policy, 0.1)
    assert_same_layers(of_policy(net.mlp), policy)
    assert_same_layers(of_policy(learning.parts["policy_target"].copy), policy_target)
    assert_same_layers(of_critics(learning.parts["critics"])[0], critic)
    assert_same_layers(of_critics(learning.parts["critics_target"].copy)[0], critic_target)


def test_a_policy_step_that_is_not_finite_is_reported_as_not_applied(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "ddpg")
    net, learning = learner(algorithm)
    assert learning.update(transitions(env=REACH), ONES, 0).step.applied
    with torch.no_grad():
        net.mlp.out.bias[0] = float("nan")  # the target policy, from which critics learn, is unharmed
    assert not learning.update(transitions(env=REACH), ONES, 0).step.applied


def test_stored_observations_join_the_statistics_once_however_often_they_are_drawn() -> None:
    settings, net = {"samples_per_insert": 2.0}, {"normalize_obs": True}
    with SmallRun("ddpg", ENVS["real actions"], settings, net=net) as run:
        batches = run.rollouts(4)
        run.learn_from(batches)
        assert run.trainer.counters.updates > 20
        seen = torch.cat([torch.from_numpy(rows["obs"][:, :T]).flatten(0, 1) for rows in batches])
        norm = run.trainer.net.vectors.norm.arrays[0]
        torch.testing.assert_close(norm.mean, seen.mean(0), rtol=1e-4, atol=1e-5)


PLAIN: dict[str, Any] = {"critics": 1, "policy_delay": 1, "target_noise": 0.0}
SHARED: dict[str, Any] = {"learning_rate": 1e-2, "policy_rate": 0.3, "target_rate": 0.05}


def learned(net: Any, learning: Any) -> list[list[torch.Tensor]]:
    """Copies of the policy, and of the targets of critics and policy."""
    parts = learning.parts
    return [weights(part) for part in (net, parts["critics_target"].copy, parts["policy_target"].copy)]


def updated(algorithm: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    net, learning = learner(algorithm)
    for seed in range(4):
        learning.update(transitions(seed, REACH), ONES, 0)
    return [*weights(learning.parts["critics"]), *(value for part in learned(net, learning) for value in part)]


@pytest.mark.parametrize("more", [{}, {"policy_delay": 2}, {"target_noise": 0.2}, {"critics": 2}], ids=str)
def test_without_noise_delay_and_twin_it_is_ddpg_bit_for_bit(tmp_path: Path, more: dict[str, Any]) -> None:
    ddpg = updated(control(tmp_path / "one", "ddpg", **SHARED))
    td3 = updated(control(tmp_path / "two", "td3", **SHARED, **{**PLAIN, **more}))
    equal = [a.shape == b.shape and torch.equal(a, b) for a, b in zip(ddpg, td3, strict=True)]
    assert all(equal) == (not more)


def test_the_target_is_the_smaller_of_two_at_a_noisy_action(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "td3", target_noise=0.4, target_noise_clip=0.5)
    (net, learning), later = learner(algorithm), 3 * torch.randn(N, 5)
    torch.nn.init.zeros_(learning.parts["critics_target"].copy.out.bias)
    torch.manual_seed(5)
    values = learning.parts["critics_target"].copy(later, learning.next_actions(later).units).amin(0)
    torch.manual_seed(5)
    noise = torch.clamp(0.4 * torch.randn(N, 2), -0.5, 0.5)
    action = torch.clamp(torch.tanh(mlp(later, of_policy(net.mlp))) + noise, -1, 1)
    one, two = (q_of(layers, later, action) for layers in of_critics(learning.parts["critics_target"].copy))
    torch.testing.assert_close(values, torch.minimum(one, two))
    assert (one < two).any()
    assert (two < one).any()


def test_policy_and_targets_wait_for_every_third_update_of_the_critics(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "td3", policy_delay=3)
    net, learning = learner(algorithm)
    changes = []
    for seed in range(6):
        before, critics = learned(net, learning), weights(learning.parts["critics"])
        metrics = learning.update(transitions(seed, REACH), ONES, 0).metrics
        assert list(metrics) == ["critic_loss", "q_mean", "policy_loss"]
        assert not are_same(critics, weights(learning.parts["critics"]))
        changes.append([not are_same(*pair) for pair in zip(before, learned(net, learning), strict=True)])
    assert changes == [[False] * 3, [False] * 3, [True] * 3] * 2


def test_densities_are_exact_also_near_the_bounds() -> None:
    outputs = torch.tensor([[0.3, -2.0, -1.0, 0.5], [9.0, 0.0, 0.0, -30.0]], dtype=torch.float64)
    noise = torch.tensor([[0.5, -1.0], [1.0, 2.0]], dtype=torch.float64)
    drawn, (mean, log_std) = draw(outputs, noise), outputs.chunk(2, -1)
    std = log_std.clamp(-20, 2).exp()
    before = mean + std * noise
    torch.testing.assert_close(drawn.units, before.tanh())
    slopes = -2 * before.cosh().log()  # logarithms of tanh's slope
    torch.testing.assert_close(drawn.log_prob, (Normal(mean, std).log_prob(before) - slopes).sum(-1))
    assert draw(outputs.float(), noise.float()).log_prob.isfinite().all()


def test_sac_is_its_update_written_out(tmp_path: Path) -> None:
    net, learning = learner(control(tmp_path, "sac", learning_rate=1e-2, target_rate=0.1, temperature=0.5))
    policy, log_alpha = of_policy(net.mlp), torch.tensor(math.log(0.5), requires_grad=True)
    critics, targets = of_critics(learning.parts["critics"]), of_critics(learning.parts["critics_target"].copy)
    parameters = [*critics[0], *critics[1]], policy, [log_alpha]
    of_both, of_policies, of_alpha = (optim.Adam(layers, 1e-2) for layers in parameters)

    def drawn(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """An action and its log-density, by torch.distributions."""
        mean, log_std = mlp(seen, policy).chunk(2, -1)
        normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False), 1)
        action = torch.tanh(mean + log_std.exp() * torch.randn(N, 2))
        squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)], validate_args=False)
        return action, squashed.log_prob(action)

    for seed in range(3):
        batch = transitions(seed, REACH)
        torch.manual_seed(seed)
        metrics = learning.update(batch, ONES, 0).metrics
        torch.manual_seed(seed)
        obs, later, alpha = batch.inputs.obs[0], batch.next_inputs.obs[0], log_alpha.exp().item()
        next_action, next_log_prob = drawn(later)
        smaller = torch.minimum(*(q_of(layers, later, next_action) for layers in targets))
        y = (batch.reward + batch.discount * (smaller - alpha * next_log_prob)).detach()
        critic_loss = sum(0.5 * ((q_of(layers, obs, units_of(batch.action)) - y) ** 2).mean() for layers in critics)
        descend(of_both, critic_loss)
        action, log_prob = drawn(obs)
        smaller = torch.minimum(*(q_of(layers, obs, action) for layers in critics))
        descend(of_policies, (alpha * log_prob - smaller).mean())
        descend(of_alpha, -log_alpha * (log_prob.detach() - 2.0).mean())
        for own, source in zip(targets, critics, strict=True):
            follow(own, source, 0.1)
        assert metrics["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-3)
        assert metrics["temperature"].item() == pytest.approx(alpha)
        assert metrics["entropy"].item() == pytest.approx(-log_prob.mean().item(), rel=1e-3)
    assert_same_layers(of_policy(net.mlp), policy)
    for found, written in ((learning.parts["critics"], critics), (learning.parts["critics_target"].copy, targets)):
        for one, two in zip(of_critics(found), written, strict=True):
            assert_same_layers(one, two)
    assert learning.parts["temperature"].value.item() == pytest.approx(log_alpha.exp().item(), rel=1e-5)


@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_the_policy_gets_the_target_entropy_whatever_the_rewards(tmp_path: Path, target: float) -> None:
    """Rewards are highest in the middle of the box, so a narrow policy earns more than a wide one."""
    torch.manual_seed(1)
    algorithm = control(tmp_path, "sac", target_entropy=target, learning_rate=1e-2, temperature=0.1)
    learning = algorithm.learning(algorithm.network())
    entropies = []
    for seed in range(300):
        batch = transitions(seed, REACH, n=32)
        units = torch.rand(32, 2) * 2 - 1
        reward = -units.square().sum(-1)
        batch = batch._replace(action=algorithm.box.actions(units), reward=reward, discount=torch.zeros(32))
        entropies.append(learning.update(batch, torch.ones(32), 0).metrics["entropy"].item())
    assert sum(entropies[-50:]) / 50 == pytest.approx(target, abs=0.3)


def test_a_fixed_temperature_stays(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "sac", learn_temperature=False, temperature=0.25)
    learning = algorithm.learning(algorithm.network())
    for seed in range(3):
        learning.update(transitions(seed, REACH), ONES, 0)
    assert learning.parts["temperature"].value.item() == pytest.approx(0.25)
