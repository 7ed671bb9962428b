"""R2D2 on played episodes: a drawn sequence begins with the recurrent state that the policy had there."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from zerobeast.rl.algos.r2d2.algorithm import loss, unroll
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.replay.items import Sequences
from zerobeast.rl.replay.replay import Drawn
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import ENVS, B, SmallRun, T

BURN_IN, LENGTH, ALPHA = 2 * T, 10, 0.9
SETTINGS = {"burn_in": BURN_IN, "sequence_length": LENGTH, "n_step": 3, "samples_per_insert": 1.0}


def small_run(root: Path, **settings: Any) -> SmallRun:
    return SmallRun("r2d2", ENVS["one choice"], SETTINGS | settings, root, net={"core": "lstm"})


class Played(NamedTuple):
    """What the environments showed and the policy answered, from the first step to the last, [S, B, ...]."""

    trainer: Trainer
    inputs: StepInput
    q: Tensor
    q_max: Tensor
    cores: Tensor  #: [S, B, core_size], from the first step on, computed by the learner's network

    def drawn(self, n: int) -> Drawn[Sequences]:
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
        t, env = played.place(batch.inputs.obs[BURN_IN, row])
        begins = played.inputs.first[t, env]
        opened += int(begins)
        earlier = torch.zeros_like(played.cores[0, 0]) if begins else played.cores[t - BURN_IN, env]
        torch.testing.assert_close(batch.core_state[row], earlier, rtol=1e-5, atol=1e-6)
        assert begins or t % T == 0
        n = int(batch.mask[:, row].sum())
        said, actions = answers[:n, row], batch.action[BURN_IN : BURN_IN + n, row, None]
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
    torch.testing.assert_close(
        given[useful] / given[useful].max(), learner[useful] / learner[useful].max(), rtol=1e-3, atol=1e-4
    )


def test_the_pace_counts_the_steps_that_are_learned_from_and_no_padding(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        for rows in run.rollouts(10, ends=1.0):  # each episode is a step, and every other row the seam after it
            run.feed(rows)
        pace, updates = run.trainer.learning.pace, run.trainer.counters.updates
    # a step is due while 240 - 20 - sampled is at least 4 x 10 steps, and learns from 4 x 1
    assert pace is not None
    assert (pace.inserted, pace.sampled, updates) == (10 * B * T, 184, 46)
