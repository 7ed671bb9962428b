"""An algorithm of a kind that is not there yet fits behind `algos.protocol`: a trained copy behind a policy that
acts, a multiplier with an optimiser of its own, and old batches."""

from collections import deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.learner_fakes import ENV, B, rollout_rows, run_config
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.impala.algorithm import Impala
from zerobeast.common.algos.protocol import Batch, Learned
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.nets.weights import flatten
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.update import Trainer

pytestmark = pytest.mark.unit

PERIOD, KEPT = 3, 2


class Multiplier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(()))


class BehindLearning:
    """Every batch is learned from when it comes and KEPT - 1 times later; every PERIOD updates the policy follows."""

    def __init__(self, algorithm: Impala, net: AgentNet) -> None:
        self._algorithm, self._acting, self.online = algorithm, net, deepcopy(net)
        self.multiplier = Multiplier()
        settings = algorithm.config.impala
        self._descent = GradientDescent(algorithm.config, settings, self.online)
        quick = settings.model_copy(update={"learning_rate": 0.1, "optimizer": "adam", "schedule": "constant"})
        self._dual = GradientDescent(algorithm.config, quick, self.multiplier)
        self.kept: deque[Batch] = deque(maxlen=KEPT)
        self._updates = 0

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        self.kept.append(batch.copy())
        for each in self.kept:
            loss, metrics = self._algorithm.loss(self.online, each)
            step = self._descent.step(loss * self.multiplier.value.detach(), agent_steps)
        self._dual.step(self.multiplier.value * (1.0 - loss.detach()), agent_steps)
        self._updates += 1
        changed = self._updates % PERIOD == 0
        if changed:
            self._acting.load_state_dict(self.online.state_dict())
        return Learned(len(self.kept), 0, changed, step.loss, step.grad_norm, step.learning_rate, metrics)

    def state(self) -> dict[str, Any]:
        return {
            "online": self.online.state_dict(),
            "multiplier": self.multiplier.state_dict(),
            "optimizers": [self._descent.state(), self._dual.state()],
            "kept": [batch._asdict() for batch in self.kept],
            "updates": self._updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.online.load_state_dict(state["online"])
        self.multiplier.load_state_dict(state["multiplier"])
        for descent, saved in zip((self._descent, self._dual), state["optimizers"], strict=True):
            descent.load(saved)
        self.kept.extend(Batch(**saved) for saved in state["kept"])
        self._updates = state["updates"]


class Behind(Impala):
    def learning(self, net: AgentNet) -> BehindLearning:  # type: ignore[override]
        return BehindLearning(self, net)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setattr("zerobeast.common.algos.impala.algorithm.Impala", Behind)
    return Trainer(run_config(tmp_path), torch.device("cpu"), ENV)


def published(trainer: Trainer) -> bytes:
    return flatten(trainer.net).tobytes()


def test_what_is_published_is_the_policy_that_acts_and_a_version_is_when_it_followed(trainer: Trainer) -> None:
    first, versions = published(trainer), []
    for seed in range(PERIOD):
        assert published(trainer) == first
        trainer.update(rollout_rows(B, seed))
        versions.append(trainer.counters.policy_version)
    assert versions == [0, 0, 1]
    assert published(trainer) == flatten(trainer.learning.online).tobytes() != first


def test_a_batch_that_is_kept_does_not_see_its_rows_written_again(trainer: Trainer) -> None:
    rows = rollout_rows(B)
    trainer.update(rows)
    kept = trainer.learning.kept[0]
    before = [entry.clone() for entry in kept]
    rows[:] = rollout_rows(B, seed=9)
    assert all(torch.equal(one, two) for one, two in zip(kept, before, strict=True))


def test_copies_multipliers_and_old_batches_come_back_bit_for_bit(tmp_path: Path, trainer: Trainer) -> None:
    for seed in range(PERIOD + 1):
        trainer.update(rollout_rows(B, seed))
    assert published(trainer) != flatten(trainer.learning.online).tobytes(), "in the middle of a period"
    assert trainer.learning.multiplier.value != 1.0
    Checkpoints(tmp_path).save({**trainer.state(), "statistics": {}, "rollouts": {}})
    resumed, saved = Trainer(trainer.config, trainer.device, ENV), Checkpoints(tmp_path).load()
    assert saved is not None
    resumed.load(Checkpoints(tmp_path).path, saved)
    for each in (trainer, resumed):
        for seed in range(4, 8):
            each.update(rollout_rows(B, seed))
    assert published(resumed) == published(trainer)
    assert flatten(resumed.learning.online).tobytes() == flatten(trainer.learning.online).tobytes()
    assert resumed.learning.multiplier.value == trainer.learning.multiplier.value
    assert resumed.counters == trainer.counters
