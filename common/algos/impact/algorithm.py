"""IMPACT, put together from the files beside it."""

from __future__ import annotations

from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.impact.config import ImpactConfig
from zerobeast.common.algos.impact.learning import ImpactLearning
from zerobeast.common.nets.agent import AgentNet


class Impact(ActorCritic[ImpactConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> ImpactLearning:
        """Several steps per batch, spread over the batches that follow it."""
        descent = GradientDescent(self.config, self.settings, net)
        return ImpactLearning(self.settings, self.family, net, descent, self.env.frame_stack)
