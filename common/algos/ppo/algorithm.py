"""PPO, put together from the files beside it."""

from __future__ import annotations

from common.algos.actor_critic import ActorCritic
from common.algos.descent import Descent
from common.algos.ppo.config import PPOConfig
from common.algos.ppo.learning import PPOLearning
from common.nets.agent import AgentNet


class PPO(ActorCritic):
    """See `common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> PPOLearning:
        """Several epochs of minibatches on every batch."""
        settings: PPOConfig = self.config.ppo
        descent = Descent(self.config, settings, net)
        return PPOLearning(settings, self.family, net, descent, self.config.learner.batch_size)
