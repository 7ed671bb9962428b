"""A2C, put together from the files beside it."""

from __future__ import annotations

from torch import Tensor

from zerobeast.common.algos.a2c import loss
from zerobeast.common.algos.a2c.config import A2CConfig
from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.one_step import OneStep
from zerobeast.common.algos.protocol import Batch, Metrics
from zerobeast.common.nets.agent import AgentNet


class A2C(ActorCritic[A2CConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    def loss(self, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and its parts."""
        return loss.loss(self.settings, self.family, net, batch)

    def learning(self, net: AgentNet) -> OneStep:
        """One step of the optimiser per batch."""
        return OneStep(net, GradientDescent(self.config, self.settings, net), self.loss)
