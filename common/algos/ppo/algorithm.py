"""PPO, put together from the files beside it."""

from __future__ import annotations

from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.ppo.config import PPOConfig
from zerobeast.common.algos.ppo.learning import PPOLearning
from zerobeast.common.nets.agent import AgentNet


class PPO(ActorCritic[PPOConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> PPOLearning:
        """Several epochs of minibatches on every batch."""
        descent = GradientDescent(self.config, self.settings, net)
        return PPOLearning(self.settings, self.family, net, descent, self.config.learner.batch_size)
