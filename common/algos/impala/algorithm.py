"""IMPALA, put together from the files beside it."""

from __future__ import annotations

from torch import Tensor

from zerobeast.common.algos.actor_critic import ActorCritic
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.impala import loss
from zerobeast.common.algos.impala.config import ImpalaConfig
from zerobeast.common.algos.impala.entropy import EntropyWeight, check
from zerobeast.common.algos.impala.learning import ImpalaLearning
from zerobeast.common.algos.impala.replay import Replay
from zerobeast.common.algos.one_step import OneStep
from zerobeast.common.algos.protocol import Batch, Learning, Metrics
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.settings.run import Run
from zerobeast.common.wire.specs import EnvSpec


class Impala(ActorCritic[ImpalaConfig]):
    """See `zerobeast.common.algos.protocol.Algorithm`.

    Args:
      config: of the run.
      env: what the environment sends and takes.

    Raises:
      ConfigError: the network cannot handle these observations or actions, or no policy has the entropy asked for.
    """

    def __init__(self, config: Run, env: EnvSpec) -> None:
        super().__init__(config, env)
        check(self.settings, env.action)

    @property
    def popart(self) -> bool:
        """As the settings say."""
        return self.settings.popart

    def loss(self, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and its parts."""
        cost = self.settings.entropy_cost
        total, _, metrics = loss.loss(self.settings, self.family, net, batch, entropy_cost=cost)
        return total, metrics

    def learning(self, net: AgentNet) -> Learning:
        """One step of the optimiser per batch, unless the settings ask for more than the paper's plain learner."""
        settings, device = self.settings, net.value.weight.device
        descent = GradientDescent(self.config, settings, net)
        plain = settings.uses == 1 and not settings.replay_share
        if plain and not settings.entropy_target and not settings.popart:
            return OneStep(net, descent, self.loss)
        replay = Replay(settings.replay_share, settings.replay_rollouts, self.config.seed)
        weight = EntropyWeight(self.config, settings, device) if settings.entropy_target else None
        return ImpalaLearning(settings, self.family, net, descent, replay, weight, self.env.frame_stack)
