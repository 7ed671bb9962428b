"""Advantage-weighted regression, put together from the files beside it."""

from __future__ import annotations

from functools import partial

from awr.config import AWRConfig
from awr.loss import loss
from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.one_step import OneStep
from zerobeast.common.algos.policy_and_value import PolicyAndValue


class AWR(ActorCritic[AWRConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> OneStep:
        """One step of the optimiser per batch."""
        descent = GradientDescent(self.config, self.settings, net.parameters())
        return OneStep(net, descent, partial(loss, self.settings, self.family))
