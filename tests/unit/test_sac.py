"""SAC: densities of squashed actions, its update written out, and a temperature that reaches the target entropy."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from tests.build.batches import ONES, REACH, N, transitions
from tests.build.control import assert_same_layers, control, follow, mlp, of_critics, of_policy
from zerobeast.rl.algos.sac.algorithm import draw


def squashed(outputs: torch.Tensor) -> TransformedDistribution:
    mean, log_std = outputs.chunk(2, -1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
    return TransformedDistribution(Independent(normal, 1), [TanhTransform(cache_size=1)], validate_args=False)


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
    rate, tau = 1e-2, 0.1
    algorithm = control(tmp_path, "sac", learning_rate=rate, target_rate=tau, temperature=0.5)
    net = algorithm.network()
    learning = algorithm.learning(net)
    policy, log_alpha = of_policy(net), torch.tensor(math.log(0.5), requires_grad=True)
    critics, targets = of_critics(learning.parts["critics"]), of_critics(learning.parts["critics_target"].copy)
    optimizers = [torch.optim.Adam(layers, rate) for layers in ([*critics[0], *critics[1]], policy, [log_alpha])]
    metrics = {}
    for seed in range(3):
        batch = transitions(seed, REACH)
        torch.manual_seed(seed)
        metrics = learning.update(batch, ONES, 0).metrics
        torch.manual_seed(seed)
        obs, later = batch.inputs.obs[0], batch.next_inputs.obs[0]
        units = (batch.action - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])
        alpha = log_alpha.exp().item()

        def drawn(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """An action and its log-density, by torch.distributions."""
            outputs = mlp(seen, policy)
            mean, log_std = outputs.chunk(2, -1)
            action = torch.tanh(mean + log_std.exp() * torch.randn(N, 2))
            return action, squashed(outputs).log_prob(action)

        next_action, next_log_prob = drawn(later)
        x = torch.cat([later, next_action], -1)
        smaller = torch.minimum(*(mlp(x, layers)[:, 0] for layers in targets))
        y = (batch.reward + batch.discount * (smaller - alpha * next_log_prob)).detach()
        x = torch.cat([obs, units], -1)
        critic_loss = sum(0.5 * ((mlp(x, layers)[:, 0] - y) ** 2).mean() for layers in critics)
        optimizers[0].zero_grad()
        critic_loss.backward()
        optimizers[0].step()
        action, log_prob = drawn(obs)
        x = torch.cat([obs, action], -1)
        smaller = torch.minimum(*(mlp(x, layers)[:, 0] for layers in critics))
        optimizers[1].zero_grad()
        (alpha * log_prob - smaller).mean().backward()
        optimizers[1].step()
        optimizers[2].zero_grad()
        (-log_alpha * (log_prob.detach() - 2.0)).mean().backward()
        optimizers[2].step()
        for own, source in zip(targets, critics, strict=True):
            follow(own, source, tau)
        assert metrics["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-3)
        assert metrics["temperature"].item() == pytest.approx(alpha)
        assert metrics["entropy"].item() == pytest.approx(-log_prob.mean().item(), rel=1e-3)
    assert_same_layers(of_policy(net), policy)
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
    for seed in range(400):
        batch = transitions(seed, REACH, n=32)
        units = torch.rand(32, 2) * 2 - 1
        batch = batch._replace(
            action=algorithm.box.actions(units), reward=-units.square().sum(-1), discount=torch.zeros(32)
        )
        entropies.append(learning.update(batch, torch.ones(32), 0).metrics["entropy"].item())
    assert sum(entropies[-100:]) / 100 == pytest.approx(target, abs=0.3)


def test_a_fixed_temperature_stays(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "sac", learn_temperature=False, temperature=0.25)
    learning = algorithm.learning(algorithm.network())
    for seed in range(3):
        learning.update(transitions(seed, REACH), ONES, 0)
    assert learning.parts["temperature"].value.item() == pytest.approx(0.25)
