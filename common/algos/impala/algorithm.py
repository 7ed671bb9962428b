"""IMPALA, put together from the files beside it."""

from __future__ import annotations

from torch import Tensor

from common.algos.actor_critic import ActorCritic
from common.algos.descent import Descent
from common.algos.impala import loss
from common.algos.one_step import OneStep
from common.algos.protocol import Batch, Metrics
from common.nets.agent import AgentNet


class Impala(ActorCritic):
    """See `common.algos.protocol.Algorithm`."""

    def loss(self, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and its parts."""
        return loss.loss(self.config.impala, self.family, net, batch)

    def learning(self, net: AgentNet) -> OneStep:
        """One step of the optimiser per batch."""
        return OneStep(net, Descent(self.config, self.config.impala, net), self.loss)
