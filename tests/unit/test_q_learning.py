"""DQN, C51 and Rainbow: updates, target networks, priorities, exploration, and what rollouts give through a replay."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import ONES, VECTORS, N, algorithm_of, generator, learner, transitions, weights
from tests.build.errors import refuses
from tests.build.learners import ENV
from zerobeast.common.config.load import load_config
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.records import Origin
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.value.exploration import epsilons
from zerobeast.rl.learning.gradient_descent import Step
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.protocol import Sampling
from zerobeast.rl.replay.items import Transitions
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import are_same

A = 3
MASKED = replace(VECTORS, action_mask=True)
NAMES = ["dqn", "c51", "rainbow"]


def apart(learning: Any, net: nn.Module) -> nn.Module:
    """Make the weights of network and target large and different; return the target."""
    g, target = generator(9), learning.parts["target"].copy
    for parameter in (*net.parameters(), *target.parameters()):
        parameter.data += torch.randn(parameter.shape, generator=g) * 0.3
    return target


def gradients(
    learning: Any, net: nn.Module, batch: Transitions, importance: Tensor
) -> tuple[Tensor, list[Tensor], Any]:
    """The loss of an update and its gradient, without taking the step, and what the update returns."""
    seen: list[Tensor] = []

    def watch(loss: Tensor, _agent_steps: int) -> Step:
        seen.extend([loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))])
        return Step(applied=False, loss=0.0, grad_norm=0.0, learning_rate=0.0)

    learning.parts["optimizer"].step = watch
    updated = learning.update(batch, importance, 0)
    return seen[0], seen[1:], updated


@pytest.mark.parametrize("env", [VECTORS, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_dqn_follows_the_gradient_of_its_objective_written_out_by_hand(
    tmp_path: Path, env: EnvSpec, double: bool, dueling: bool
) -> None:
    algorithm = algorithm_of("dqn", env, root=tmp_path, double=double, dueling=dueling, huber=0.7)
    (net, learning), batch, importance = learner(algorithm), transitions(env=env), torch.rand(N, generator=generator(4))
    target = apart(learning, net)
    loss, grads, updated = gradients(learning, net, batch, importance)

    q, later, aimed = (
        n(i, torch.zeros(N, 0))[0][0]
        for n, i in zip((net, net, target), (batch.inputs, batch.next_inputs, batch.next_inputs), strict=True)
    )
    total, errors = torch.zeros(()), []
    for i in range(N):
        legal = [a for a in range(A) if env is VECTORS or batch.next_inputs.action_mask[0, i, a]]
        chooser = later if double else aimed
        action = max(legal, key=lambda a, row=chooser[i]: row[a].item())
        y = batch.reward[i] + batch.discount[i] * aimed[i, action].detach()
        error = y - q[i, batch.action[i]]
        size = error.abs()
        huber = error**2 / 2 if size.item() <= 0.7 else 0.7 * (size - 0.35)
        total, errors = total + importance[i] * huber / N, [*errors, size.item()]
    torch.testing.assert_close(loss, total.detach())
    for mine, theirs in zip(grads, torch.autograd.grad(total, list(net.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert updated.priorities.tolist() == pytest.approx(errors, abs=1e-5)
    assert all(parameter.grad is None for parameter in target.parameters())


def test_the_target_follows_after_its_period_a_bit_each_time(tmp_path: Path) -> None:
    algorithm = algorithm_of("dqn", root=tmp_path, target_period=3, target_rate=0.25)
    net, learning = learner(algorithm)
    start = weights(net)
    for n in (1, 2, 3):
        assert are_same(weights(learning.parts["target"].copy), start)
        learning.update(transitions(n), ONES, 0)
    for old, now, target in zip(start, weights(net), weights(learning.parts["target"].copy), strict=True):
        torch.testing.assert_close(target, old + 0.25 * (now - old))


@pytest.mark.parametrize(("name", "alpha", "carried"), [("dqn", 0.0, 0), ("dqn", 0.6, 2), ("rainbow", 0.6, 0)])
def test_acting_values_travel_only_if_priorities_are_td_errors(name: str, alpha: float, carried: int) -> None:
    algorithm = algorithm_of(name, MASKED, priority_exponent=alpha)
    net, step = algorithm.network(), transitions(5, MASKED).inputs
    act, _ = algorithm.act(net, step, torch.zeros(N, 0), Sampling(torch.arange(N), generator(), greedy=False))
    assert len(algorithm.policy.extras) == len(act.extras) == carried
    assert step.action_mask is not None
    for i in range(N if carried else 0):
        q = net(step, torch.zeros(N, 0))[0][0, i]
        assert act.extras["q"][i].item() == pytest.approx(q[act.action[i]].item())
        assert act.extras["q_max"][i].item() == pytest.approx(q[step.action_mask[0, i]].max().item())


@pytest.mark.parametrize("name", NAMES)
def test_exploration_is_annealed_or_a_ladder_and_none_in_evaluation(name: str) -> None:
    rows = 4000
    step = StepInput(*(part[:, :1].expand(1, rows, *part.shape[2:]) for part in transitions().inputs[:4]))
    share = partial(_explored, step, rows)
    algorithm = algorithm_of(name, exploration_steps=1000, exploration_final=0.2)
    for agent_steps, epsilon in ((0, 1.0), (500, 0.6), (1000, 0.2), (9000, 0.2)):
        assert share(algorithm, agent_steps).mean().item() == pytest.approx(epsilon, abs=0.05)
    assert share(algorithm, 0, greedy=True).mean() == 0
    ladder = share(algorithm_of(name, exploration="ladder", exploration_places=2), 0).view(-1, 2).mean(0)
    assert ladder.tolist() == pytest.approx(epsilons(torch.arange(2), 2).tolist(), abs=0.05)


def _explored(step: StepInput, rows: int, algorithm: Any, agent_steps: int, *, greedy: bool = False) -> Tensor:
    """[rows] whose mean estimates the share of random actions, from how many differ from the best action."""
    net = algorithm.network()
    net.agent_steps.fill_(agent_steps)
    sampling = Sampling(torch.arange(rows), generator(), greedy)
    (action, _), _ = algorithm.act(net, step, torch.zeros(rows, 0), sampling)
    best = algorithm.values.expectation(net(step, torch.zeros(rows, 0))[0][0, 0]).argmax()
    return (action != best).float() * A / (A - 1)


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_a_v_min_that_is_not_below_v_max_is_refused(name: str) -> None:
    with refuses(f"{name}.v_min", value=3.0, beside=(f"{name}.v_max",)):
        load_config(["--env", "CartPole-v1", "--algo", name, f"--{name}.v_min", "3", f"--{name}.v_max", "3"], {})


CPU, T, B = torch.device("cpu"), 4, 3
SMALL = {"replay_size": 120, "replay_min_size": 24, "batch_size": 5, "samples_per_insert": 1.0, "updates_per_step": 2}


def trainer(root: Path, algo: str, **settings: Any) -> Trainer:
    learner = {"unroll_length": T, "batch_size": B, "device": "cpu", "precision": "float32"}
    run = {"name": "run", "root": str(root), "algo": algo, "learner": learner, "net": {"hidden_size": 8}}
    return Trainer(RunConfig.model_validate(run | {algo: SMALL | settings}), CPU, ENV)


def test_targets_are_made_of_shaped_rewards_as_written_out_by_hand(tmp_path: Path) -> None:
    """Nine steps of a stream in two rollouts; an episode terminates at observation 5, another begins at 6."""
    dqn = trainer(tmp_path, "dqn", n_step=2, discount=0.5, reward_scale=0.5, reward_clipping="abs_one")
    first, second = np.zeros(1, dqn.record.dtype), np.zeros(1, dqn.record.dtype)
    for at, rows in ((0, first), (4, second)):
        rows["obs"] = np.arange(at, at + 5)[:, None]
        rows["reward"] = [0, 1, -1, 9, 0.5, 2, 0, 0.25, 1][at : at + 5]
        rows["last_action"] = (np.arange(at, at + 5) - 1) % 2
    second["terminated"][0, 1] = second["first"][0, 2] = True
    for seq, rows in enumerate((first, second)):
        dqn.add(rows, origins=np.array([Origin(7, 0, seq, 0, 1)]))
    batch = dqn.learning.parts["replay"].draw(300, 1.0).batch  # type: ignore[attr-defined]
    columns = (batch.inputs.obs[0, :, 0], batch.action, batch.reward, batch.discount, batch.next_inputs.obs[0, :, 0])
    assert set(zip(*(column.tolist() for column in columns), strict=True)) == {
        (0.0, 0, 0.5 + 0.5 * -0.5, 0.25, 2.0),
        (1.0, 1, -0.5 + 0.5 * 1.0, 0.25, 3.0),  # 9 is scaled to 4.5 and clipped to 1
        (2.0, 0, 1.0 + 0.5 * 0.25, 0.25, 4.0),
        (3.0, 1, 0.25 + 0.5 * 1.0, 0.0, 5.0),  # spans both rollouts
        (4.0, 0, 1.0, 0.0, 5.0),
    }, "nothing was done from 5, the end; what the policy says to 8 is in the next rollout"


def test_new_items_are_drawn_by_the_errors_of_the_policy_that_acted(tmp_path: Path) -> None:
    dqn = trainer(tmp_path, "dqn", priority_exponent=1.0, discount=0.5)
    rows = np.zeros(1, dqn.record.dtype)
    rows["obs"] = np.arange(5)[:, None]
    rows["reward"], rows["q"], rows["q_max"] = [0, 1, 1, 1, 1], [1, 2, 3, 4], [9, 2, 4, 4]
    dqn.add(rows, origins=np.array([Origin(7, 0, 0, 0, 1)]))
    drawn = dqn.learning.parts["replay"].draw(3000, 0.0).batch.inputs.obs[0, :, 0]  # type: ignore[attr-defined]
    counts = np.bincount(drawn.int().numpy(), minlength=4)
    errors = np.array([1.0, 1.0, 0.0])  # |1 + 0.5 2 - 1|, |1 + 0.5 4 - 2|, |1 + 0.5 4 - 3|; the last is not known yet
    assert counts[:3] / 3000 == pytest.approx(errors / errors.sum(), abs=0.05)
