"""V-MPO, put together from the files beside it."""

from __future__ import annotations

import math
from copy import deepcopy

from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.target import Target
from zerobeast.common.algos.vmpo.config import VMPOConfig
from zerobeast.common.algos.vmpo.learning import VMPOLearning
from zerobeast.common.algos.vmpo.multipliers import Multipliers
from zerobeast.common.nets.agent import AgentNet


class VMPO(ActorCritic[VMPOConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    @property
    def popart(self) -> bool:
        """As the settings say."""
        return self.settings.popart

    def learning(self, net: AgentNet) -> VMPOLearning:
        """An optimiser each for policy and multipliers: neither rate nor clip of the one touches the other."""
        settings = self.settings
        online = deepcopy(net)
        target = Target(source=online, copy=net, period=settings.target_period)
        multipliers = Multipliers(settings, real=self.env.action.kind == "box").to(net.value.weight.device)
        constant = {"optimizer": "adam", "learning_rate": settings.multiplier_rate, "schedule": "constant"}
        pace = settings.model_copy(update={**constant, "max_grad_norm": math.inf})
        descents = GradientDescent(self.config, settings, online), GradientDescent(self.config, pace, multipliers)
        return VMPOLearning(settings, self.family, target, multipliers, *descents)
