"""DDPG: a deterministic policy that climbs Q."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from zerobeast.rl.algos.control.box_learning import BoxControl, BoxLearning
from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.ddpg.config import DDPGConfig
from zerobeast.rl.learning import GradientDescent, Target
from zerobeast.rl.protocol import Metrics

Settings = TypeVar("Settings", bound=DDPGConfig)


class DDPG(BoxControl[Settings]):
    """See `zerobeast.rl.protocol.Algorithm`: one action per state, plus noise of constant size."""

    def best(self, outputs: Tensor) -> Tensor:
        """The policy's action."""
        return torch.tanh(outputs)

    def explore(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """The same with noise, clipped to the box."""
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return (torch.tanh(outputs) + self.settings.noise * noise).clamp(-1.0, 1.0)

    def learning(self, net: BoxPolicy) -> DDPGLearning:
        """With one critic."""
        return DDPGLearning(self, net)


class DDPGLearning(BoxLearning):
    """See `BoxLearning`. Of several Q estimates, targets use the smallest, and the policy climbs the first."""

    def __init__(self, algorithm: DDPG[Any], net: BoxPolicy, n_critics: int = 1) -> None:
        super().__init__(algorithm, net, n_critics)
        run, settings = algorithm.config, algorithm.settings
        self._policy = Target(source=net.mlp, copy=deepcopy(net.mlp), tau=settings.target_rate)
        self._policy_descent = GradientDescent(run, settings.of_policy(), net.mlp.parameters())
        self.parts |= {"policy_target": self._policy, "policy_optimizer": self._policy_descent}

    def next_actions(self, features: Tensor) -> Tensor:
        """[N, d] by the target policy."""
        return torch.tanh(self._policy.copy(features))

    def next_values(self, features: Tensor) -> Tensor:
        """[N] by the target critics of the target policy's actions."""
        values: Tensor = self._critics.copy(features, self.next_actions(features))
        return values.amin(0)

    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """A step up Q along the action (Lillicrap et al. 2016, equation 6), after which all targets follow."""
        with self._policy_descent.autocast():
            loss = -self._critics.source(features, torch.tanh(self._net(features)), 1).mean()
        step = self._policy_descent.step(loss, agent_steps)
        self._critics.count()
        self._policy.count()
        return step.applied, {"policy_loss": torch.full_like(loss.detach(), step.loss)}
