"""Advantage-weighted regression, put together from the files beside it."""

from __future__ import annotations

from functools import partial

from awr.config import AWRConfig
from awr.loss import loss
from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.learning import GradientDescent


class AWR(ActorCritic[AWRConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> OneStep:
        """One step of the optimiser per batch."""
        descent = GradientDescent(self.config, self.settings, net.parameters())
        return OneStep(net, descent, partial(loss, self.settings, self.family))
