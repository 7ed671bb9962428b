"""The network of an actor-critic: a body with a policy head and a value head."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.nets import Network, PopArt, StepInput, make_body, without_autocast
from zerobeast.rl.nets.actions import head, policy_head

VALUE_GAIN = 1.0


class Answer(NamedTuple):
    """The network's output, float32 whatever the precision of the computation."""

    logits: Tensor  #: [T, B, A], parameters of the action distribution: `zerobeast.rl.ops.distributions`
    value: Tensor  #: [T, B]


class PolicyAndValue(Network):
    """Policy and value of one environment's observations, for actions of any kind.

    Args:
      config: of the body and the policy head.
      env: its observations and actions.
    """

    def __init__(self, config: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.body = make_body(config, env, heads=2)
        self.core_size = self.body.core_size
        self.policy = policy_head(self.body.out_size, env.action, config)
        self.value: nn.Linear | PopArt = head(self.body.out_size, 1, VALUE_GAIN)  #: one output, or one per task

    def forward(self, inputs: StepInput, core: Tensor, task: Tensor | None = None) -> tuple[Answer, Tensor]:
        """Unroll T steps.

        Args:
          inputs: T steps of B environments.
          core: [B, core_size] the state before step 0.
          task: [B] int64, the task whose value to return if there is one per task; None: the first. It is no
            input of the policy.

        Returns:
          the answers to all steps, and the state after the last one, [B, core_size].
        """
        features, core = self.body(inputs, core)
        with without_autocast(core.device):  # heads are small, and their rounding errors are the policy's
            return Answer(self.policy(features[0]), _select_task(self.value(features[-1]), task)), core

    def value_scale(self, task: Tensor) -> Tensor:
        """[B]: the unit in which the values of each row's `task` [B] are learned, 1 without PopArt."""
        return self.value.scale[task] if isinstance(self.value, PopArt) else torch.ones(len(task), device=task.device)

    def observe_targets(self, targets: Tensor, mask: Tensor, task: Tensor) -> None:
        """Add value targets [T, B] of tasks [B], where `mask` [T, B] is True, to the statistics of PopArt, if any."""
        if isinstance(self.value, PopArt):
            self.value.observe(targets[mask], task.expand_as(mask)[mask])


def _select_task(values: Tensor, task: Tensor | None) -> Tensor:
    """Each row's values of its own task: [T, B, K] -> [T, B]."""
    if task is None or values.shape[-1] == 1:
        return values[..., 0]
    return values.gather(-1, task.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)
