"""Advantage-weighted regression, put together from the files beside it."""

from __future__ import annotations

from functools import partial

from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.awr.loss import loss
from zerobeast.common.algos.gradient_descent import Descent
from zerobeast.common.algos.one_step import OneStep
from zerobeast.common.nets.agent import AgentNet


class AWR(ActorCritic):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    def learning(self, net: AgentNet) -> OneStep:
        """One step of the optimiser per batch."""
        settings = self.config.awr
        return OneStep(net, Descent(self.config, settings, net), partial(loss, settings, self.family))
