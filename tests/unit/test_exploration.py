"""Exploration that differs between environments and over the run: what `act` is told."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.brokers import EchoAlgorithm
from tests.build.learners import ENV, B, learn, rollout_rows, run_config
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.algos.value.exploration import epsilons
from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.weights import flatten, layout_id
from zerobeast.rl.protocol import Sampling
from zerobeast.services.learner.update import Trainer

CPU = torch.device("cpu")


def test_the_ladder_is_that_of_apex() -> None:
    eight = epsilons(torch.arange(8), 8)
    written = [0.4, 0.4**2, 0.4**3, 0.4**4, 0.4**5, 0.4**6, 0.4**7, 0.4**8]  # 1 + 7 i / 7
    assert eight.tolist() == pytest.approx(written)
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
def test_acting_gets_the_agent_steps_at_which_the_weights_were_published(tmp_path: Any, algo: str) -> None:
    config = run_config(tmp_path)
    own = VMPOConfig(target_period=1) if algo == "vmpo" else config.algorithm
    trainer = Trainer(config.model_copy(update={"algo": algo, "algorithm": own}), CPU, ENV)
    inference = Inference(trainer.algorithm, max_rows=4, device=CPU, dtype=torch.float32, seed=1)
    assert inference.layout_id == layout_id(trainer.net)
    for seed in range(2):
        learn(trainer, rollout_rows(B, seed))
        inference.load(flatten(trainer.net))
        assert int(inference.net.agent_steps) == trainer.counters.agent_steps == 20 * (seed + 1)
