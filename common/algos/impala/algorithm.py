"""IMPALA, put together from the files beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.descent import Descent
from common.algos.impala import loss, network, policy
from common.algos.one_step import OneStep
from common.algos.protocol import Act, Batch, Metrics
from common.config.tree import RunConfig
from common.nets.agent import AgentNet, StepInput
from common.specs import EnvSpec, PolicySpec


class Impala:
    """See `common.algos.protocol.Algorithm`.

    Args:
      config: of the run.
      env: what the environment sends and takes.

    Raises:
      ConfigError: IMPALA cannot handle these observations or actions.
    """

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self._run = config
        self._config = config.impala
        with torch.device("meta"):  # checks that observations, actions and torso fit, and allocates nothing
            core_size = network.build(config, env).core_size
        self.policy = PolicySpec(n_logits=env.action.sizes[0], core_size=core_size)

    def network(self) -> AgentNet:
        """A new network; its weights depend on the run's seed alone."""
        return network.build(self._run, self.env)

    def act(
        self, net: AgentNet, inputs: StepInput, core: Tensor, *, generator: torch.Generator, greedy: bool
    ) -> tuple[Act, Tensor]:
        """One step of B environments."""
        return policy.act(net, inputs, core, generator=generator, greedy=greedy)

    def loss(self, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and its parts."""
        return loss.loss(self._config, net, batch)

    def learning(self, net: AgentNet) -> OneStep:
        """One step of the optimiser per batch."""
        return OneStep(net, Descent(self._run, self._config, net), self.loss)
