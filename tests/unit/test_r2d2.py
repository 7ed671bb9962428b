"""R2D2's targets, loss and priorities, against each sequence worked out step by step."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import VECTORS, generator, values_of
from zerobeast.common.settings.net import NetConfig
from zerobeast.rl.algos.r2d2.algorithm import loss
from zerobeast.rl.algos.r2d2.config import R2D2Config
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.replay.items import Sequences

BURN_IN, M, N, A = 3, 6, 24, 3
L = BURN_IN + M


def network(seed: int = 1, *, core: str = "lstm") -> QNetwork:
    torch.manual_seed(seed)
    net = QNetwork(NetConfig(core=core, core_width=8), VECTORS, dueling=True, head_size=8, clip_reward=False)
    for parameter in net.head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return net


def config(**settings: Any) -> R2D2Config:
    return R2D2Config(**{"n_step": 3, "discount": 0.9, "priority_mix": 0.7, **settings})


def sequences(seed: int = 1) -> Sequences:
    """Random sequences. One in three fills its learn part; the others end within it, and every other of those
    terminates. In one of four an episode begins right after the burn-in."""
    g = generator(seed)
    first, terminated = torch.zeros(2, L + 1, N, dtype=torch.bool).unbind()
    mask = torch.zeros(L, N, dtype=torch.bool)
    for row in range(N):
        length = M if row % 3 == 0 else int(torch.randint(1, M + 1, (), generator=g))
        mask[BURN_IN : BURN_IN + length, row] = True
        terminated[BURN_IN + length, row] = row % 3 == 1
        if length < M:
            first[BURN_IN + length + 1, row] = True
        first[BURN_IN, row] = row % 4 == 0
    taken = values_of(VECTORS.action, L + 1, N, g=g)
    rewards = 20 * torch.randn(L + 1, N, generator=g)
    inputs = StepInput(values_of(VECTORS.obs, L + 1, N, g=g), taken, rewards, first)
    return Sequences(inputs, taken[1:], terminated, {}, torch.randn(N, 16, generator=g), mask, BURN_IN)


def answers(net: QNetwork, batch: Sequences, row: int) -> list[list[float]]:
    """A network's answer to each step of a sequence, one step at a time."""
    core, found = batch.core_state[row : row + 1, : net.core_size], []
    for t in range(L + 1):
        seen = (entry[t : t + 1, row : row + 1] for entry in batch.inputs[:4])
        with torch.no_grad():
            answer, core = net(StepInput(*seen), core)
        found.append(answer[0, 0].tolist())
    return found


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    return math.copysign(((math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1, x)


def errors(settings: R2D2Config, net: QNetwork, target: QNetwork, batch: Sequences, row: int) -> list[float]:
    """TD errors of the transitions of a sequence."""
    online, aimed = answers(net, batch, row), answers(target, batch, row)
    found = []
    for start in range(BURN_IN, L):
        if not batch.mask[start, row]:
            break
        total, weight, t = 0.0, 1.0, start
        while t < L and t < start + settings.n_step and batch.mask[t, row]:
            t += 1
            total += weight * batch.inputs.reward[t, row].item()
            weight *= 0.0 if batch.terminated[t, row] else settings.discount
        best = max(range(A), key=lambda action, t=t: online[t][action])
        aim = h(total + weight * h_inverse(aimed[t][best]))
        found.append(aim - online[start][int(batch.action[start, row])])
    return found


@pytest.mark.parametrize(("core", "n"), [("lstm", 3), ("lstm", 1), ("none", 20)])
def test_loss_and_priorities_are_those_of_each_sequence_on_its_own(*, core: str, n: int) -> None:
    settings, batch, weights = config(n_step=n), sequences(), torch.rand(N, generator=generator())
    net, target = network(core=core), network(2, core=core)
    by_row = [errors(settings, net, target, batch, row) for row in range(N)]
    found = loss(settings, net, target, batch, weights)
    written = sum(w * sum(e * e / 2 for e in row) for w, row in zip(weights.tolist(), by_row, strict=True)) / N
    assert found.total.item() == pytest.approx(written, rel=1e-4)
    mixed = [0.7 * max(map(abs, row)) + 0.3 * sum(map(abs, row)) / len(row) for row in by_row]
    assert found.priorities.tolist() == pytest.approx(mixed, rel=1e-4)
    assert found.metrics["valid_fraction"].item() == pytest.approx(sum(map(len, by_row)) / (M * N))


def gradients(settings: R2D2Config, net: QNetwork, batch: Sequences) -> list[Tensor]:
    total = loss(settings, net, deepcopy(net), batch, torch.ones(N)).total
    return list(torch.autograd.grad(total, list(net.parameters())))


def test_the_burn_in_moves_the_state_and_has_no_gradient() -> None:
    batch, net = sequences(), network()
    before, after = (StepInput(*(e[part] for e in batch.inputs[:4])) for part in (slice(BURN_IN), slice(BURN_IN, None)))
    with torch.no_grad():
        _, state = net(before, batch.core_state)
    cut = Sequences(after, batch.action[3:], batch.terminated[3:], {}, state, batch.mask[3:], burn_in=0)
    for whole, rest in zip(gradients(config(), net, batch), gradients(config(), net, cut), strict=True):
        torch.testing.assert_close(whole, rest)


def test_without_rescaling_targets_are_plain_and_clipping_is_the_learners_own_setting() -> None:
    batch, net = sequences(), network()
    reward = torch.full_like(batch.inputs.reward, 9.0)
    batch = batch._replace(inputs=batch.inputs._replace(reward=reward))
    plain = config(value_rescaling=False, n_step=1, discount=0.0, priority_mix=0.0)
    for settings, aim in ((plain, 9.0), (plain.model_copy(update={"reward_clipping": "abs_one"}), 1.0)):
        found = loss(settings, net, net, batch, torch.ones(N)).metrics
        assert found["target"].item() == pytest.approx(aim)
        assert found["q"].abs() > 0.01
