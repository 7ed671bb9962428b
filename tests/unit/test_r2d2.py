"""R2D2's targets, loss and priorities step by step, and sequences that begin with the state that the policy had."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import VECTORS, generator, values_of
from zerobeast.common.settings.net import NetConfig
from zerobeast.rl.algos.r2d2.algorithm import loss, unroll
from zerobeast.rl.algos.r2d2.config import R2D2Config
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.replay.items import Sequences
from zerobeast.rl.replay.replay import ReplaySample
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import ENVS, B, SmallRun, T

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


BURNT_IN, LENGTH, ALPHA = 2 * T, 10, 0.9
SETTINGS = {"burn_in": BURNT_IN, "sequence_length": LENGTH, "n_step": 3, "samples_per_insert": 1.0}


def small_run(root: Path, **settings: Any) -> SmallRun:
    return SmallRun("r2d2", ENVS["one choice"], SETTINGS | settings, root, net={"core": "lstm"})


class Played(NamedTuple):
    """What the environments showed and the policy answered, from the first step to the last, [S, B, ...]."""

    trainer: Trainer
    inputs: StepInput
    q: Tensor
    q_max: Tensor
    cores: Tensor  #: [S, B, core_size], from the first step on, computed by the learner's network

    def drawn(self, n: int) -> ReplaySample[Sequences]:
        return self.trainer.learning.parts["replay"].draw(n, 1.0)  # type: ignore[attr-defined]

    def place(self, obs: Tensor) -> tuple[int, int]:
        """The step and the environment of an observation."""
        [at] = (self.inputs.obs == obs).all(-1).nonzero().tolist()
        return at[0], at[1]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    with small_run(tmp_path_factory.mktemp("run"), replay_min_size=10**6) as run:  # no step is due
        trainer = run.trainer
        for parameter in trainer.net.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        rollouts = run.rollouts(60, ends=0.1)
        for rows in rollouts:
            run.add(rows)

    def entries(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([rows[name][:, :T] for rows in rollouts], 1)).transpose(0, 1)

    inputs = StepInput(*(entries(name) for name in ("obs", "last_action", "reward", "first")))
    core, cores = trainer.net.initial_state(B), []
    for t in range(len(inputs.first)):
        cores.append(core.masked_fill(inputs.first[t, :, None], 0.0))
        with torch.no_grad():
            _, core = trainer.net(StepInput(*(entry[t : t + 1] for entry in inputs[:4])), core)
    return Played(trainer, inputs, entries("q"), entries("q_max"), torch.stack(cores))


def test_a_sequence_begins_with_the_state_of_its_first_step_and_reproduces_the_values(played: Played) -> None:
    batch = played.drawn(400).batch
    answers = unroll(played.trainer.net, batch)
    opened = 0
    for row in range(400):
        t, env = played.place(batch.inputs.obs[BURNT_IN, row])
        begins = played.inputs.first[t, env]
        opened += int(begins)
        earlier = torch.zeros_like(played.cores[0, 0]) if begins else played.cores[t - BURNT_IN, env]
        torch.testing.assert_close(batch.core_state[row], earlier, rtol=1e-5, atol=1e-6)
        assert begins or t % T == 0
        n = int(batch.mask[:, row].sum())
        said, actions = answers[:n, row], batch.action[BURNT_IN : BURNT_IN + n, row, None]
        for found, acted in ((said.amax(-1), played.q_max), (said.gather(-1, actions)[:, 0], played.q)):
            torch.testing.assert_close(found, acted[t : t + n, env], rtol=1e-5, atol=1e-6)
        assert not played.inputs.first[t + 1 : t + n + 1, env].any(), "one episode"
    assert 40 < opened < 360


def test_new_sequences_have_the_priorities_that_the_learner_would_give_them(played: Played) -> None:
    drawn = played.drawn(400)
    batch, net = drawn.batch, played.trainer.net
    more = torch.cat([batch.mask[1:], torch.zeros_like(batch.mask[:1])])
    known = batch._replace(mask=batch.mask & (more | batch.terminated[1:]))
    learner = loss(played.trainer.config.algorithm, net, net, known, torch.ones(400)).priorities
    given = drawn.weights ** (-1 / ALPHA)  # in proportion to the priorities
    useful = learner > 1e-3  # the replay raises priorities near 0
    assert useful.float().mean() > 0.9
    found, wanted = (each[useful] / each[useful].max() for each in (given, learner))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_the_pace_counts_the_steps_that_are_learned_from_and_no_padding(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        for rows in run.rollouts(10, ends=1.0):  # each episode is a step, and every other row the seam after it
            run.feed(rows)
        pace, updates = run.trainer.learning.pace, run.trainer.counters.updates
    # a step is due while 240 - 20 - sampled is at least 4 x 10 steps, and learns from 4 x 1
    assert pace is not None
    assert (pace.inserted, pace.sampled, updates) == (10 * B * T, 184, 46)
