"""PPO with an entropy bonus that falls linearly over the run."""

from __future__ import annotations

import torch

from own_everything.config import AnnealedPPOConfig
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.algorithm import PPO, PPOLearning
from zerobeast.rl.data import Batch
from zerobeast.rl.protocol import Learned


class AnnealedPPO(PPO):
    settings: AnnealedPPOConfig

    def learning(self, net: PolicyAndValue) -> PPOLearning:
        return AnnealedLearning(self, net)


class AnnealedLearning(PPOLearning):
    def __init__(self, algorithm: AnnealedPPO, net: PolicyAndValue) -> None:
        super().__init__(algorithm, net)
        self._given = algorithm.settings
        self._total_steps = algorithm.config.total_steps

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch with the weight that is due after so many agent steps of the run."""
        cost = self._given.entropy_cost_at(agent_steps / self._total_steps)
        self.settings = self._given.model_copy(update={"entropy_cost": cost})
        learned = super().update(batch, agent_steps)
        return learned._replace(metrics={**learned.metrics, "entropy_cost": torch.tensor(cost)})  # one more curve
