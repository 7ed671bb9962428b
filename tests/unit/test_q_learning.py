"""DQN, C51 and Rainbow: updates, target networks, priorities and exploration."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import VECTORS, generator, masks_for, same, values_of, weights
from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.value import q_learning as module
from zerobeast.rl.algos.value.exploration import epsilons
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.learning.gradient_descent import Step
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.protocol import Sampling
from zerobeast.rl.replay.items import Transitions

N, A = 8, 3
MASKED = replace(VECTORS, action_mask=True)
NAMES = ["dqn", "c51", "rainbow"]

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes algorithms without a replay; tests call their updates with transitions of their own."""
    monkeypatch.setattr("zerobeast.rl.learning.replay_learning.Replay", lambda *_args, **_more: None)

    def made(name: str, env: EnvSpec = VECTORS, net: dict[str, Any] | None = None, **settings: Any) -> Any:
        run = {"root": str(tmp_path), "name": "run", "algo": name, "net": net or {}, name: settings}
        return make_algorithm(RunConfig.model_validate(run | {"learner": {"precision": "float32"}}), env)

    return made


def inputs(env: EnvSpec, seed: int) -> StepInput:
    first = torch.rand(1, N, generator=generator(seed)) < 0.3
    taken, g = values_of(env.action, 1, N, g=generator(seed)), generator(seed)
    mask = masks_for(env, taken, seed)
    return StepInput(values_of(env.obs, 1, N, g=g), taken, torch.randn(1, N, generator=g), first, mask)


def drawn(env: EnvSpec = VECTORS, seed: int = 1) -> Transitions:
    g = generator(seed)
    before, after = inputs(env, seed), inputs(env, seed + 100)
    action = before.last_action[0]  # allowed by the mask
    discount = torch.rand(N, generator=g).masked_fill(torch.arange(N) % 3 == 0, 0.0)
    return Transitions(before, action, torch.randn(N, generator=g) * 2, discount, after, {}, {})


def apart(learning: Any, net: nn.Module) -> nn.Module:
    """Make the weights of network and target large and different; return the target."""
    g, target = generator(9), learning._target.copy
    for parameter in (*net.parameters(), *target.parameters()):
        parameter.data += torch.randn(parameter.shape, generator=g) * 0.3
    return target


def gradients(learning: Any, batch: Transitions, importance: Tensor) -> tuple[Tensor, list[Tensor], Any]:
    """The loss of an update and its gradient, without taking the step, and what the update returns."""
    seen: list[Tensor] = []

    def watch(loss: Tensor, _agent_steps: int) -> Step:
        parameters = learning._descent._parameters
        seen.extend([loss.detach(), *torch.autograd.grad(loss, parameters)])
        return Step(applied=False, loss=0.0, grad_norm=0.0, learning_rate=0.0)

    learning._descent.step = watch
    updated = learning.update(batch, importance, 0)
    return seen[0], seen[1:], updated


@pytest.mark.parametrize("env", [VECTORS, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_dqn_follows_the_gradient_of_its_objective_written_out_by_hand(
    make: Make, env: EnvSpec, double: bool, dueling: bool
) -> None:
    algorithm = make("dqn", env, double=double, dueling=dueling, huber=0.7)
    net = algorithm.network()
    learning, batch, importance = algorithm.learning(net), drawn(env), torch.rand(N, generator=generator(4))
    target = apart(learning, net)
    loss, grads, updated = gradients(learning, batch, importance)

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


@pytest.mark.parametrize("name", NAMES)
def test_double_equals_plain_only_while_the_target_equals_the_network(make: Make, name: str) -> None:
    both = []
    for double in (True, False):
        algorithm = make(name, double=double)
        net = algorithm.network()
        learning = algorithm.learning(net)
        apart(learning, net)
        learning._target.copy.load_state_dict(net.state_dict())
        together = learning.update(drawn(seed=2), torch.ones(N), 0).priorities
        apart(learning, net)
        both.append((together, learning.update(drawn(seed=3), torch.ones(N), 0).priorities))
    assert torch.equal(both[0][0], both[1][0])
    assert not torch.equal(both[0][1], both[1][1])


@pytest.mark.parametrize("name", NAMES)
def test_what_the_mask_forbids_is_never_the_best_later_action(make: Make, name: str) -> None:
    algorithm = make(name, MASKED, dueling=False, double=True)
    net = algorithm.network()
    learning, batch = algorithm.learning(net), drawn(MASKED)
    mask = torch.tensor([True, False, True]).expand(1, N, A)
    batch = batch._replace(
        next_inputs=batch.next_inputs._replace(action_mask=mask), action=torch.zeros(N, dtype=torch.int64)
    )
    learning._descent.step = lambda *_: Step(applied=False, loss=0.0, grad_norm=0.0, learning_rate=0.0)
    before = learning.update(batch, torch.ones(N), 0).priorities
    for each in (net, learning._target.copy):
        bias = each.head.advantages.bias.data.view(A, -1)
        bias[1] += torch.linspace(0.0, 50.0, bias.shape[1] + 1)[1:]  # worth the most, as a number and as a distribution
    assert torch.equal(learning.update(batch, torch.ones(N), 0).priorities, before)


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_a_bandit_s_rewards(make: Make, name: str) -> None:
    algorithm = make(name, learning_rate=0.01, target_period=3)
    net = algorithm.network()
    learning, batch = algorithm.learning(net), drawn()
    batch = batch._replace(discount=torch.zeros(N), reward=batch.action.float() - 1)
    first = learning.update(batch, torch.ones(N), 0)
    for _ in range(150):
        last = learning.update(batch, torch.ones(N), 0)
    assert last.priorities.mean() < 0.2 * first.priorities.mean()
    q = algorithm.values.expected(module.answers(net, batch.inputs))
    torch.testing.assert_close(module.of_actions(q, batch.action), batch.reward, atol=0.15, rtol=0)


def test_the_target_follows_after_its_period_or_a_bit_each_time(make: Make) -> None:
    algorithm = make("dqn", target_period=3)
    net = algorithm.network()
    learning = algorithm.learning(net)
    start = weights(net)
    for n in (1, 2, 3, 4):
        learning.update(drawn(seed=n), torch.ones(N), 0)
        assert same(weights(learning._target.copy), start) == (n < 3)
    algorithm = make("dqn", target_period=1, target_rate=0.25)
    net = algorithm.network()
    learning, start = algorithm.learning(net), weights(net)
    learning.update(drawn(), torch.ones(N), 0)
    for old, now, target in zip(start, weights(net), weights(learning._target.copy), strict=True):
        torch.testing.assert_close(target, old + 0.25 * (now - old))


def test_a_loss_that_is_not_finite_changes_nothing(make: Make) -> None:
    algorithm = make("dqn", net={"normalize_obs": True}, target_period=1)
    net = algorithm.network()
    learning, before = algorithm.learning(net), weights(net)
    batch = drawn()
    batch.reward[0] = torch.nan
    assert not learning.update(batch, torch.ones(N), 0).step.applied
    assert same(weights(net), before)
    assert same(weights(learning._target.copy), before)
    learning.update(drawn(), torch.ones(N), 0)
    assert not same(weights(net.body.norm), weights(algorithm.network().body.norm))
    assert same(weights(learning._target.copy), weights(net)), "statistics too"


@pytest.mark.parametrize(("name", "alpha", "carried"), [("dqn", 0.0, 0), ("dqn", 0.6, 2), ("rainbow", 0.6, 0)])
def test_acting_values_travel_only_if_priorities_are_td_errors(
    make: Make, name: str, alpha: float, carried: int
) -> None:
    algorithm = make(name, MASKED, priority_exponent=alpha)
    net, step = algorithm.network(), inputs(MASKED, 5)
    act, _ = algorithm.act(net, step, torch.zeros(N, 0), Sampling(torch.arange(N), generator(), greedy=False))
    assert len(algorithm.policy.extras) == len(act.extras) == carried
    assert step.action_mask is not None
    for i in range(N if carried else 0):
        q = net(step, torch.zeros(N, 0))[0][0, i]
        assert act.extras["q"][i].item() == pytest.approx(q[act.action[i]].item())
        assert act.extras["q_max"][i].item() == pytest.approx(q[step.action_mask[0, i]].max().item())


def test_first_priorities_are_the_errors_of_the_values_that_acted() -> None:
    batch = drawn()._replace(
        reward=torch.tensor([1.0, 1.0]),
        discount=torch.tensor([0.25, 0.0]),
        extras={"q": torch.tensor([2.0, 2.0]), "q_max": torch.tensor([3.0, 3.0])},
        next_extras={"q": torch.tensor([0.0, 0.0]), "q_max": torch.tensor([8.0, 8.0])},
    )
    assert module.first_priorities(batch).tolist() == [1.0, 1.0]  # 1 + 0.25 8 - 2, and 1 - 2


@pytest.mark.parametrize("name", NAMES)
def test_exploration_is_annealed_or_a_ladder_and_none_in_evaluation(make: Make, name: str) -> None:
    rows = 4000
    step = StepInput(*(part[:, :1].expand(1, rows, *part.shape[2:]) for part in inputs(VECTORS, 1)[:4]))
    share = partial(_explored, step, rows)
    algorithm = make(name, exploration_steps=1000, exploration_final=0.2)
    for agent_steps, epsilon in ((0, 1.0), (500, 0.6), (1000, 0.2), (9000, 0.2)):
        assert share(algorithm, agent_steps).mean().item() == pytest.approx(epsilon, abs=0.05)
    assert share(algorithm, 0, greedy=True).mean() == 0
    ladder = share(make(name, exploration="ladder", exploration_places=2), 0).view(-1, 2).mean(0)
    assert ladder.tolist() == pytest.approx(epsilons(torch.arange(2), 2).tolist(), abs=0.05)


def _explored(step: StepInput, rows: int, algorithm: Any, agent_steps: int, *, greedy: bool = False) -> Tensor:
    """[rows] whose mean estimates the share of random actions, from how many differ from the best action."""
    net = algorithm.network()
    net.agent_steps.fill_(agent_steps)
    sampling = Sampling(torch.arange(rows), generator(), greedy)
    (action, _), _ = algorithm.act(net, step, torch.zeros(rows, 0), sampling)
    best = algorithm.values.expected(net(step, torch.zeros(rows, 0))[0][0, 0]).argmax()
    return (action != best).float() * A / (A - 1)


def test_a_recurrent_network_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"net\.use_lstm true: expected false, because dqn learns from single"):
        make("dqn", net={"use_lstm": True})


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_a_v_min_that_is_not_below_v_max_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}\.v_min 3 with {name}\.v_max 3: expected a lower one"):
        load(["--env", "CartPole-v1", "--algo", name, f"--{name}.v_min", "3", f"--{name}.v_max", "3"], {})
