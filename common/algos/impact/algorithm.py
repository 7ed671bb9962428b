"""IMPACT, put together from the files beside it."""

from __future__ import annotations

from common.algos.actor_critic import ActorCritic
from common.algos.descent import Descent
from common.algos.impact.learning import ImpactLearning
from common.nets.agent import AgentNet


class Impact(ActorCritic):
    """See `common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> ImpactLearning:
        """Several steps per batch, spread over the batches that follow it."""
        settings = self.config.impact
        descent = Descent(self.config, settings, net)
        return ImpactLearning(settings, self.family, net, descent, self.env.frame_stack)
