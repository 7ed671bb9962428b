"""How DDPG, TD3 and SAC learn alike, and DDPG against its update written out."""

from pathlib import Path

import torch

from tests.build.batches import ONES, REACH, N, transitions
from tests.build.control import assert_same_layers, control, follow, mlp, of_critics, of_policy
from zerobeast.testing.small_run import ENVS, SmallRun, T


def test_ddpg_equals_its_update_written_out(tmp_path: Path) -> None:
    rate, tau = 1e-2, 0.1
    algorithm = control(tmp_path, "ddpg", learning_rate=rate, policy_rate=0.5, target_rate=tau)
    net = algorithm.network()
    learning = algorithm.learning(net)
    policy, policy_target = of_policy(net), of_policy(net)
    [critic], [critic_target] = of_critics(learning.parts["critics"]), of_critics(learning.parts["critics_target"].copy)
    critic_adam, policy_adam = torch.optim.Adam(critic, rate), torch.optim.Adam(policy, rate / 2)
    for seed in range(3):
        batch, importance = transitions(seed, REACH), torch.rand(N)
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
    assert_same_layers(of_critics(learning.parts["critics"])[0], critic)
    assert_same_layers(of_critics(learning.parts["critics_target"].copy)[0], critic_target)
    assert_same_layers(
        [entry.T if entry.ndim == 2 else entry for entry in learning.parts["policy_target"].copy.parameters()],
        policy_target,
    )


def test_a_policy_step_that_is_not_finite_is_reported_as_not_applied(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "ddpg")
    net = algorithm.network()
    learning = algorithm.learning(net)
    assert learning.update(transitions(env=REACH), ONES, 0).step.applied
    with torch.no_grad():
        net.mlp.out.bias[0] = float("nan")  # the target policy, from which critics learn, is unharmed
    assert not learning.update(transitions(env=REACH), ONES, 0).step.applied


def test_priorities_are_td_errors(tmp_path: Path) -> None:
    algorithm = control(tmp_path, "ddpg", priority_exponent=0.5)
    learning, batch = algorithm.learning(algorithm.network()), transitions(env=REACH)
    batch = batch._replace(discount=torch.zeros(N))
    x = torch.cat([batch.inputs.obs[0], algorithm.box.units(batch.action)], -1)
    errors = mlp(x, of_critics(learning.parts["critics"])[0])[:, 0] - batch.reward
    updated = learning.update(batch, ONES, 0)
    torch.testing.assert_close(updated.priorities, errors.abs().detach())


def test_stored_observations_join_the_statistics_once_however_often_they_are_drawn() -> None:
    settings, net = {"samples_per_insert": 2.0}, {"normalize_obs": True}
    with SmallRun("ddpg", ENVS["real actions"], settings, net=net) as run:
        batches = run.rollouts(4)
        run.fed(batches)
        assert run.trainer.counters.updates > 20
        seen = torch.cat([torch.from_numpy(rows["obs"][:, :T]).flatten(0, 1) for rows in batches])
        norm = run.trainer.net.vectors.norm.arrays[0]
        torch.testing.assert_close(norm.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
