"""Action values: what the heads put out, and which actions are chosen from it."""

import pytest
import torch

from tests.build.batches import generator
from zerobeast.rl.algos.value.exploration import best, epsilon_greedy
from zerobeast.rl.algos.value.q_network import QHead

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
