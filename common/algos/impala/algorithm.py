"""IMPALA, put together from the files beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.impala import loss, network, policy
from common.algos.protocol import Act, Batch, Metrics
from common.config.tree import RunConfig
from common.nets.agent import AgentNet, StepInput
from common.ops.optim import RMSPropTF1, linear_decay
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

    @property
    def max_grad_norm(self) -> float:
        """The global norm that gradients are clipped to before a step."""
        return self._config.max_grad_norm

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

    def optimizer(self, net: AgentNet) -> torch.optim.Optimizer:
        """RMSProp of either kind, or Adam."""
        c = self._config
        if c.optimizer == "adam":
            # fused: one pass over the memory, four to ten times faster on a CPU than torch's default
            return torch.optim.Adam(net.parameters(), lr=c.learning_rate, eps=c.epsilon, fused=True)
        rmsprop = RMSPropTF1 if c.optimizer == "rmsprop_tf" else torch.optim.RMSprop
        return rmsprop(net.parameters(), lr=c.learning_rate, alpha=c.alpha, eps=c.epsilon, momentum=c.momentum)

    def learning_rate(self, agent_steps: int) -> float:
        """Constant, or in a line from the configured value to 0 at the run's last step."""
        if self._config.schedule == "constant":
            return self._config.learning_rate
        return linear_decay(self._config.learning_rate, agent_steps, self._run.total_steps)
