"""What an algorithm is to the services: five answers, and no loop.

The broker asks for `network` and calls `act`; the learner asks for `network`, `optimizer` and `max_grad_norm` and
turns this loop, which is the same for every on-policy algorithm:

    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = algorithm.learning_rate(agent_steps)
        loss, metrics = algorithm.loss(net, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), algorithm.max_grad_norm)
        optimizer.step()
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from common.nets.agent import AgentNet, StepInput
from common.specs import EnvSpec, PolicySpec


class Batch(NamedTuple):
    """B unrolls of T steps and the step after them, time-major; see `common.records` for the time index."""

    obs: Tensor  #: [T + 1, B, *frame], or [T + 1, B, k, *frame] with a frame stack of k > 1
    first: Tensor  #: [T + 1, B] bool
    reward: Tensor  #: [T + 1, B] float32, unclipped
    terminated: Tensor  #: [T + 1, B] bool
    truncated: Tensor  #: [T + 1, B] bool
    last_action: Tensor  #: [T + 1, B, *action shape]
    behaviour_logits: Tensor  #: [T, B, A] of the policy that acted
    value: Tensor  #: [T, B] its values
    policy_version: Tensor  #: [T, B] int64
    core_state: Tensor  #: [B, core_size] before step 0
    mask: Tensor  #: [T, B] bool, False where transition t is void (first[t + 1]) or beyond the step budget


class Act(NamedTuple):
    """The policy's answer to one step of B environments."""

    action: Tensor  #: [B, *action shape]
    logits: Tensor  #: [B, A] float32, what `action` was drawn from
    value: Tensor  #: [B] float32


Metrics = dict[str, Tensor]


class Algorithm(Protocol):
    """One algorithm for one environment."""

    env: EnvSpec

    @property
    def policy(self) -> PolicySpec:
        """What actors have to know of the policy."""

    @property
    def max_grad_norm(self) -> float:
        """The global norm that gradients are clipped to before a step."""

    def network(self) -> AgentNet:
        """A new network, the same for every call with the same settings: their seed decides."""

    def act(
        self, net: AgentNet, inputs: StepInput, core: Tensor, *, generator: torch.Generator, greedy: bool
    ) -> tuple[Act, Tensor]:
        """Choose actions for one step.

        Args:
          net: the policy.
          inputs: with T = 1.
          core: [B, core_size] before this step.
          generator: source of all randomness.
          greedy: take the likeliest action instead of drawing one.

        Returns:
          the answer, and the state after this step, [B, core_size]; all without gradient.
        """

    def loss(self, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and detached scalars worth a curve each."""

    def optimizer(self, net: AgentNet) -> torch.optim.Optimizer:
        """A new optimiser over the parameters of `net`."""

    def learning_rate(self, agent_steps: int) -> float:
        """The learning rate after so many agent steps."""
