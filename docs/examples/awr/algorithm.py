"""Advantage-weighted regression, put together from the files beside it."""

from __future__ import annotations

from functools import partial

from common.algos.actor_critic import ActorCritic
from common.algos.awr.loss import loss
from common.algos.descent import Descent
from common.algos.one_step import OneStep
from common.nets.agent import AgentNet


class AWR(ActorCritic):
    """See `common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> OneStep:
        """One step of the optimiser per batch."""
        settings = self.config.awr
        return OneStep(net, Descent(self.config, settings, net), partial(loss, settings, self.family))
