"""Action values: heads, losses and returns against formulas written out, and how they are explored."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import generator
from tests.build.brokers import EchoAlgorithm, serving
from zerobeast.rl.algos.value.exploration import best_action, epsilon_greedy, epsilons
from zerobeast.rl.algos.value.q_network import QHead
from zerobeast.rl.algos.value.q_values import Distributions, Scalars
from zerobeast.rl.nets import StepInput, flatten
from zerobeast.rl.ops.returns import n_step_returns, project, rescale, unrescale
from zerobeast.rl.protocol import Sampling
from zerobeast.testing.small_run import B, SmallRun, T, first_env

N, K, LOW, HIGH = 6, 11, -2.0, 3.0
Z = [LOW + i * (HIGH - LOW) / (K - 1) for i in range(K)]


def probs(seed: int = 1) -> Tensor:
    return torch.randn(N, K, generator=generator(seed), dtype=torch.float64).mul(2).softmax(-1)


def random(seed: int = 2) -> Tensor:
    return torch.randn(N, generator=generator(seed), dtype=torch.float64)


def projected(p: Tensor, reward: Any, discount: Any) -> Tensor:
    rewards, discounts = (torch.full((N,), float(x)) if isinstance(x, float) else x for x in (reward, discount))
    return project(p, rewards.double(), discounts.double(), LOW, HIGH)


def test_the_projection_is_equation_7_of_the_paper() -> None:
    p, r, gamma, dz = probs(), random(), torch.rand(N, generator=generator(3)).double(), Z[1] - Z[0]
    for row, got in enumerate(projected(p, r, gamma)):
        for i in range(K):
            moved = [min(max(float(r[row]) + float(gamma[row]) * z, LOW), HIGH) for z in Z]
            hats = [min(max(1 - abs(tz - Z[i]) / dz, 0.0), 1.0) for tz in moved]
            assert got[i].item() == pytest.approx(sum(h * q for h, q in zip(hats, p[row].tolist(), strict=True)))


@pytest.mark.parametrize("k", [11, 51])
@pytest.mark.parametrize("ends", [(-20.0, 25.0), (-5.0, 40.0), (-200.0, 500.0), (0.0, 150.0), (-10.0, 10.0)])
def test_mass_at_the_highest_atom_stays_there_in_float32(k: int, ends: tuple[float, float]) -> None:
    rewards = torch.tensor([ends[1], 2 * ends[1]])
    targets = project(torch.full((2, k), 1 / k), rewards, torch.zeros(2), *ends)
    assert targets.min() >= 0
    assert targets[:, -1].min() > 0.999
    loss, _ = Distributions(k, *ends).compare(torch.zeros(2, k), torch.zeros(2, k), rewards, torch.zeros(2))
    assert loss.isfinite().all()


def test_a_distribution_s_loss_is_the_divergence_from_the_target_and_pulls_towards_it() -> None:
    values = Distributions(K, LOW, HIGH)
    chosen = torch.randn(N, K, generator=generator(5), dtype=torch.float64, requires_grad=True)
    bootstrap, r, gamma = probs(4).log(), random(), torch.full((N,), 0.9, dtype=torch.float64)
    loss, priority = values.compare(chosen, bootstrap, r, gamma)
    target, p = projected(probs(4), r, gamma), chosen.softmax(-1)
    torch.testing.assert_close(loss, torch.distributions.kl_divergence(Of(target), Of(p)))
    torch.testing.assert_close(priority, loss.detach())
    loss.sum().backward()
    torch.testing.assert_close(chosen.grad, (p - target).detach(), msg="the gradient of a cross-entropy")
    same, none = values.compare(bootstrap, bootstrap, r * 0, gamma * 0 + 1)
    assert same.abs().max() < 1e-12
    assert none.min() >= 0
    torch.testing.assert_close(values.expectation(chosen), (p * torch.tensor(Z).double()).sum(-1))


Of = torch.distributions.Categorical


def test_a_scalars_loss_is_the_huber_loss_of_the_td_error_whose_size_is_the_priority() -> None:
    chosen = torch.tensor([1.0, 1.0, 1.0, 1.0], requires_grad=True)
    bootstrap, reward = torch.tensor([2.0, 2.0, 50.0, -6.0]), torch.tensor([0.25, 0.0, 1.75, 0.0])
    discount = torch.tensor([0.5, 0.5, 0.0, 0.5])
    values = Scalars(huber=2.0)
    loss, priority = values.compare(chosen, bootstrap, reward, discount)  # errors 0.25, 0, 0.75, -4
    assert loss.tolist() == [0.25**2 / 2, 0.0, 0.75**2 / 2, 2 * (4 - 2 / 2)]
    assert priority.tolist() == [0.25, 0.0, 0.75, 4.0]
    loss.sum().backward()
    assert chosen.grad is not None
    assert chosen.grad.tolist() == [-0.25, 0.0, -0.75, 2.0]
    assert values.expectation(chosen) is chosen


def test_returns_bootstrap_from_the_last_observation_if_truncated_and_not_if_terminated() -> None:
    values = torch.tensor([[9.0, 9.0], [9.0, 9.0], [4.0, 4.0], [9.0, 9.0]])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    discounts = torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.5, 0.5]])
    returns = n_step_returns(rewards=torch.ones(3, 2), discounts=discounts, values=values, mask=mask, n=5)
    assert returns[:2].tolist() == [[1 + 0.5 + 0.25 * 4, 1 + 0.5], [1 + 0.5 * 4, 1.0]]


NUMBERS = torch.tensor([0.0, 1e-4, 0.01, 0.5, 1.0, 3.0, 20.0, 1e3, 1e6], dtype=torch.float64)
NUMBERS = torch.cat([-NUMBERS, NUMBERS])


@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_rescaling_and_its_inverse_are_the_papers_formulas(eps: float) -> None:
    x, size, sign = NUMBERS, NUMBERS.abs(), NUMBERS.sign()
    torch.testing.assert_close(rescale(x, eps), sign * ((size + 1).sqrt() - 1) + eps * x)
    root = (1 + 4 * eps * (size + 1 + eps)).sqrt()
    torch.testing.assert_close(unrescale(x, eps), sign * (((root - 1) / (2 * eps)).square() - 1), rtol=1e-8, atol=1e-12)


def test_the_inverse_is_accurate_in_single_precision_too() -> None:
    x = NUMBERS.float()
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=2e-6, atol=0.0)
    torch.testing.assert_close(rescale(unrescale(x)), x, rtol=2e-6, atol=0.0)


A, ATOMS, WIDTH = 3, 5, 4
MASK = torch.tensor([[True, True, True], [True, False, True], [False, False, True]])
FEATURES = torch.randn(3, WIDTH, generator=generator())


@pytest.mark.parametrize("atoms", [None, ATOMS])
def test_dueling_is_the_state_value_plus_advantages_of_zero_mean_over_legal_actions(atoms: int | None) -> None:
    torch.manual_seed(2)
    head = QHead(WIDTH, A, dueling=True, atoms=atoms, hidden_size=7)
    assert head.value is not None
    q, value, advantages = head(FEATURES, MASK), head.value(FEATURES), head.advantages(FEATURES)
    assert q.shape == (3, A) if atoms is None else (3, A, ATOMS)
    for row in range(3):
        legal = MASK[row]
        torch.testing.assert_close(q[row][legal].mean(0).view(-1), value[row])
        of_row = advantages[row].view(A, -1)
        torch.testing.assert_close(
            q[row].view(A, -1) - value[row], of_row - of_row[legal].mean(0), msg="the gaps are those of the advantages"
        )
    torch.testing.assert_close(head(FEATURES), head(FEATURES, torch.ones_like(MASK)))


def test_greedy_and_random_actions_are_always_legal() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0]]).expand(3, -1)
    assert best_action(q).tolist() == [1, 1, 1]
    assert best_action(q, MASK).tolist() == [1, 2, 2]
    rows = 6000
    many, legal = q[1:2].expand(rows, -1), MASK[1:2].expand(rows, -1)
    counts = epsilon_greedy(many, torch.tensor(0.5), generator(), legal).bincount(minlength=A).tolist()
    assert counts[1] == 0
    assert counts[0] == pytest.approx(rows / 4, rel=0.1), "half explore, half of them here"
    assert epsilon_greedy(many, torch.zeros(rows), generator(), legal).tolist() == [2] * rows
    each = torch.arange(rows) % 2  # some explore always, others never
    assert (epsilon_greedy(many, each.float(), generator(), legal)[each == 0] == 2).all()


def test_the_ladder_is_that_of_apex() -> None:
    eight = epsilons(torch.arange(8), 8)
    assert eight.tolist() == pytest.approx([0.4 ** (1 + place) for place in range(8)])
    assert epsilons(torch.tensor([9, 2, 16]), 8).tolist() == pytest.approx([0.4**2, 0.4**3, 0.4])
    assert epsilons(torch.arange(3), 1).tolist() == pytest.approx([0.4] * 3)


class Slotted(EchoAlgorithm):
    """Remembers which environments it was asked for."""

    asked: list[list[int]]

    def act(self, net: Any, inputs: StepInput, core: Tensor, sampling: Sampling) -> Any:
        self.asked = [*getattr(self, "asked", []), sampling.slots.tolist()]
        return super().act(net, inputs, core, sampling)


def test_acting_gets_the_slot_of_each_row() -> None:
    algorithm = Slotted()
    inference = serving(algorithm)
    inference.batch.slots[:3] = [7, 2, 9]
    inference.submit(3, with_cores=False)
    assert algorithm.asked[-1] == [7, 2, 9]


@pytest.mark.parametrize("algo", ["impala", "vmpo"])  # the latter publishes a copy
def test_acting_gets_the_agent_steps_at_which_the_weights_were_published(algo: str) -> None:
    with SmallRun(algo, first_env(algo), {}) as run:
        inference = serving(run.trainer.algorithm)
        for batches, rows in enumerate(run.rollouts(2, ends=0.0), 1):
            run.feed(rows)
            run.feed(rows)
            inference.load(flatten(run.trainer.net))
            assert int(inference.net.agent_steps) == 2 * batches * B * T
