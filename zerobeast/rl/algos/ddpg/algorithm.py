"""DDPG: a deterministic policy that climbs Q."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from zerobeast.rl.algos.control.box_control import BoxControl
from zerobeast.rl.algos.control.box_learning import BoxLearning, NextActions
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
        self._policy_target = self.follow_slowly(net.mlp)
        self._policy_descent = GradientDescent(algorithm.config, algorithm.settings.of_policy(), net.mlp.parameters())
        self.parts |= {"policy_target": self._policy_target, "policy_optimizer": self._policy_descent}

    def targets(self) -> Iterable[Target[Any] | None]:
        """The target policy too."""
        return (*super().targets(), self._policy_target)

    def next_actions(self, features: Tensor) -> NextActions:
        """Those of the target policy."""
        policy = self._net.mlp if self._policy_target is None else self._policy_target.copy
        return NextActions(torch.tanh(policy(features)))

    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """A step up Q along the action (Lillicrap et al. 2016, equation 6)."""
        with self._policy_descent.autocast():
            estimates = self._critics(features, torch.tanh(self._net(features)), 1)
            loss = -self._estimates.means(estimates).mean()
        step = self._policy_descent.step(loss, agent_steps)
        return step.applied, {"policy_loss": torch.full_like(loss.detach(), step.loss)}
