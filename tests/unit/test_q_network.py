"""Action values: what the heads put out, which actions are chosen from it, and what exploration is told."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import generator
from tests.build.brokers import EchoAlgorithm
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.algos.value.exploration import best, epsilon_greedy, epsilons
from zerobeast.rl.algos.value.q_network import QHead
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.weights import flatten
from zerobeast.rl.protocol import Sampling
from zerobeast.testing.small_run import B, SmallRun, T, first_env

CPU = torch.device("cpu")

A, K, WIDTH = 3, 5, 4
MASK = torch.tensor([[True, True, True], [True, False, True], [False, False, True]])
FEATURES = torch.randn(3, WIDTH, generator=generator())


def dueling(atoms: int | None = None) -> QHead:
    torch.manual_seed(2)
    return QHead(WIDTH, A, dueling=True, atoms=atoms, hidden_size=7)


@pytest.mark.parametrize("atoms", [None, K])
def test_dueling_is_the_state_value_plus_advantages_of_zero_mean_over_legal_actions(atoms: int | None) -> None:
    head = dueling(atoms)
    assert head.value is not None
    q, value, advantages = head(FEATURES, MASK), head.value(FEATURES), head.advantages(FEATURES)
    assert q.shape == (3, A) if atoms is None else (3, A, K)
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
    assert best(q).tolist() == [1, 1, 1]
    assert best(q, MASK).tolist() == [1, 2, 2]
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
    inference = Inference(algorithm, max_rows=4, device=CPU, dtype=torch.float32, seed=1)
    inference.reserve(10)
    inference.batch.slots[:3] = [7, 2, 9]
    inference.submit(3, with_cores=False)
    assert algorithm.asked[-1] == [7, 2, 9]


@pytest.mark.parametrize("algo", ["impala", "vmpo"])  # the latter publishes a copy
def test_acting_gets_the_agent_steps_at_which_the_weights_were_published(algo: str) -> None:
    with SmallRun(algo, first_env(algo), {}) as run:
        inference = Inference(run.trainer.algorithm, max_rows=4, device=CPU, dtype=torch.float32, seed=1)
        for batches, rows in enumerate(run.rollouts(2, ends=0.0), 1):
            run.feed(rows)
            run.feed(rows)
            inference.load(flatten(run.trainer.net))
            assert int(inference.net.agent_steps) == 2 * batches * B * T
