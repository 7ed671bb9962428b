"""TD3: what it adds to DDPG, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.batches import ONES, REACH, N, same, transitions, weights
from tests.build.control import control, mlp, of_critics, of_policy

PLAIN: dict[str, Any] = {"critics": 1, "policy_delay": 1, "target_noise": 0.0}
SHARED: dict[str, Any] = {"learning_rate": 1e-2, "policy_rate": 0.3, "target_rate": 0.05}


def learned(net: Any, learning: Any) -> list[list[torch.Tensor]]:
    """Copies of the policy, and of the targets of critics and policy."""
    parts = learning.parts
    return [weights(part) for part in (net, parts["critics_target"].copy, parts["policy_target"].copy)]


def updated(algorithm: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    net = algorithm.network()
    learning = algorithm.learning(net)
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
    net = algorithm.network()
    learning, later = algorithm.learning(net), 3 * torch.randn(N, 5)
    torch.nn.init.zeros_(learning.parts["critics_target"].copy.out.bias)
    torch.manual_seed(5)
    values = learning.next_values(later)
    torch.manual_seed(5)
    noise = torch.clamp(0.4 * torch.randn(N, 2), -0.5, 0.5)
    action = torch.clamp(torch.tanh(mlp(later, of_policy(net))) + noise, -1, 1)
    one, two = (
        mlp(torch.cat([later, action], -1), layers)[:, 0]
        for layers in of_critics(learning.parts["critics_target"].copy)
    )
    torch.testing.assert_close(values, torch.minimum(one, two))
    assert (one < two).any()
    assert (two < one).any()


def test_policy_and_targets_wait_for_every_third_update_of_the_critics(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "td3", policy_delay=3)
    net = algorithm.network()
    learning = algorithm.learning(net)
    changes = []
    for seed in range(6):
        before, critics = learned(net, learning), weights(learning.parts["critics"])
        metrics = learning.update(transitions(seed, REACH), ONES, 0).metrics
        assert list(metrics) == ["critic_loss", "q_mean", "policy_loss"]
        assert not same(critics, weights(learning.parts["critics"]))
        changes.append([not same(*pair) for pair in zip(before, learned(net, learning), strict=True)])
    assert changes == [[False] * 3, [False] * 3, [True] * 3] * 2
