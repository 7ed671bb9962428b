"""How DDPG, TD3 and SAC learn alike, and DDPG against its update written out."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.batches import ALGORITHMS, same, weights
from tests.build.control import (
    N,
    T,
    assert_same_layers,
    control,
    control_config,
    follow,
    mlp,
    of_critics,
    of_policy,
    rollouts,
    trained,
    trainer_of,
    transitions,
)
from zerobeast.rl.replay_settings import BoxSettings

CONTROL = [name for name, section in ALGORITHMS.items() if issubclass(section, BoxSettings)]
ONES = torch.ones(N)


def test_ddpg_equals_its_update_written_out(tmp_path: Path) -> None:
    rate, tau = 1e-2, 0.1
    algorithm = control(tmp_path, "ddpg", learning_rate=rate, policy_rate=0.5, target_rate=tau)
    net = algorithm.network()
    learning = algorithm.learning(net)
    policy, policy_target = of_policy(net), of_policy(net)
    [critic], [critic_target] = of_critics(learning._critics.source), of_critics(learning._critics.copy)
    critic_adam, policy_adam = torch.optim.Adam(critic, rate), torch.optim.Adam(policy, rate / 2)
    for seed in range(3):
        batch, importance = transitions(seed), torch.rand(N)
        learning.update(batch, importance, 0)
        obs, later = batch.inputs.obs[0], batch.next_inputs.obs[0]
        units = (batch.action - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])
        next_action = torch.tanh(mlp(later, policy_target))
        y = batch.reward + batch.discount * mlp(torch.cat([later, next_action], -1), critic_target)[:, 0]
        errors = mlp(torch.cat([obs, units], -1), critic)[:, 0] - y.detach()
        critic_adam.zero_grad()
        (importance * errors**2 / 2).mean().backward()
        critic_adam.step()
        policy_adam.zero_grad()
        (-mlp(torch.cat([obs, torch.tanh(mlp(obs, policy))], -1), critic)).mean().backward()
        policy_adam.step()
        follow(critic_target, critic, tau)
        follow(policy_target, policy, tau)
    assert_same_layers(of_policy(net), policy)
    assert_same_layers(of_critics(learning._critics.source)[0], critic)
    assert_same_layers(of_critics(learning._critics.copy)[0], critic_target)
    assert_same_layers(
        [entry.T if entry.ndim == 2 else entry for entry in learning._policy.copy.parameters()], policy_target
    )


@pytest.mark.parametrize("name", CONTROL)
def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path, name: str) -> None:
    net, more = {"normalize_obs": True}, {"priority_exponent": 0.6, "n_step": 2}
    whole = trained(trainer_of(control_config(tmp_path / "whole", name, net=net, **more)), range(8))
    config = control_config(tmp_path / "cut", name, net=net, **more)
    state = trained(trainer_of(config), range(5)).state()
    torch.rand(17)  # what a new process draws before it resumes must not matter
    resumed = trainer_of(config)
    resumed.load(tmp_path, state)
    assert not resumed.recovered()
    trained(resumed, range(5, 8))
    assert resumed.counters.updates == whole.counters.updates > 10
    assert _bits(resumed.state()) == _bits(whole.state())


def _bits(state: Any) -> Any:
    """The state of training in comparable form, without the configuration, which names the folder."""
    if isinstance(state, dict):
        return {name: _bits(value) for name, value in state.items() if name != "config"}
    return state.tolist() if hasattr(state, "tolist") else state


@pytest.mark.parametrize("name", CONTROL)
def test_a_reward_that_is_no_number_changes_nothing(tmp_path: Path, name: str) -> None:
    algorithm = control(tmp_path, name, priority_exponent=0.5)
    net = algorithm.network()
    learning = algorithm.learning(net)
    before = [weights(net), weights(learning._critics.source), weights(learning._critics.copy)]
    batch = transitions()
    batch.reward[2] = float("nan")
    assert not learning.update(batch, ONES, 0).step.applied
    after = [weights(net), weights(learning._critics.source), weights(learning._critics.copy)]
    assert all(map(same, before, after))


def test_a_policy_step_that_is_not_finite_is_reported_as_not_applied(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "ddpg")
    net = algorithm.network()
    learning = algorithm.learning(net)
    assert learning.update(transitions(), ONES, 0).step.applied
    with torch.no_grad():
        net.mlp.out.bias[0] = float("nan")  # the target policy, from which critics learn, is unharmed
    assert not learning.update(transitions(), ONES, 0).step.applied


def test_priorities_are_td_errors(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "ddpg", priority_exponent=0.5)
    learning, batch = algorithm.learning(algorithm.network()), transitions()
    batch = batch._replace(discount=torch.zeros(N))
    x = torch.cat([batch.inputs.obs[0], algorithm.box.units(batch.action)], -1)
    errors = mlp(x, of_critics(learning._critics.source)[0])[:, 0] - batch.reward
    updated = learning.update(batch, ONES, 0)
    torch.testing.assert_close(updated.priorities, errors.abs().detach())


def test_stored_observations_join_the_statistics_once_however_often_they_are_drawn(tmp_path: Path) -> None:
    trainer = trained(trainer_of(control_config(tmp_path, "ddpg", net={"normalize_obs": True})), range(4))
    assert trainer.counters.updates > 5
    seen = torch.cat([torch.from_numpy(rollouts(trainer, number)["obs"][:, :T]).flatten(0, 1) for number in range(4)])
    norm = trainer.net.vectors.norm.arrays[0]
    torch.testing.assert_close(norm.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
