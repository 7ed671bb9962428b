"""V-MPO, put together from the files beside it."""

from __future__ import annotations

from copy import deepcopy

from torch import nn

from common.algos.actor_critic import ActorCritic
from common.algos.descent import Descent
from common.algos.target import Target
from common.algos.vmpo.config import VMPOConfig
from common.algos.vmpo.learning import VMPOLearning
from common.algos.vmpo.multipliers import Multipliers
from common.nets.agent import AgentNet


class VMPO(ActorCritic):
    """See `common.algos.protocol.Algorithm`."""

    @property
    def popart(self) -> bool:
        """As the settings say."""
        return bool(self.config.vmpo.popart)

    def learning(self, net: AgentNet) -> VMPOLearning:
        """One optimiser for policy and multipliers, so that a step is taken by all of them or by none."""
        settings: VMPOConfig = self.config.vmpo
        online = deepcopy(net)
        multipliers = Multipliers(settings, real=self.env.action.kind == "box").to(net.value.weight.device)
        descent = Descent(self.config, settings, nn.ModuleList([online, multipliers]))
        target = Target(source=online, copy=net, period=settings.target_period)
        return VMPOLearning(settings, self.family, target, multipliers, descent)
