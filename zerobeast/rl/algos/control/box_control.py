"""Acting with continuous actions, what DDPG, TD3 and SAC share: uniformly at first, then by a policy.

Actions are in units of their box. The policy is the one that acts; everything else is for learning only.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.data import Batch
from zerobeast.rl.nets import StepInput, seed_weights, without_autocast
from zerobeast.rl.ops.gaussian import Box
from zerobeast.rl.protocol import Act, Sampling
from zerobeast.rl.replay_settings import BoxSettings

Settings = TypeVar("Settings", bound=BoxSettings)


class BoxControl(ABC, Generic[Settings]):
    """The acting half of `rl.protocol.Algorithm`. Learning needs nothing from the behaviour policy but actions.

    Args:
      config: of the run; `settings` is its section named by `algo`.
      env: what the environment sends and takes.
    """

    outputs: ClassVar[int] = 1  #: policy outputs for each component of an action

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env, self.config = env, config
        self.settings = cast("Settings", config.algorithm)
        assert isinstance(env.action, ArraySpace), "which `fit` checks"
        self.box, self.action_size = Box(env.action), math.prod(env.action.shape)
        best = (Field("best", "<f4", (self.action_size,)),)  # for `divergence`
        self.policy = PolicySpec(best if config.sync.parsed.measured else (), self.network().core_size)

    def network(self) -> BoxPolicy:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        with seed_weights(self.config.seed):
            return BoxPolicy(self.config.net, self.env, self.outputs * self.action_size)

    @torch.inference_mode()
    def act(self, net: BoxPolicy, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """One step of B environments, whatever their slots."""
        outputs = net(net.encode(inputs))
        extras = {"best": self.best(outputs)} if self.policy.extras else {}
        if sampling.greedy:
            return Act(self.box.actions(self.best(outputs)), extras), core
        units = self.explore(outputs, sampling.generator)
        uniform = torch.empty_like(units).uniform_(-1.0, 1.0, generator=sampling.generator)
        early = net.agent_steps < self.settings.random_steps  # a tensor, because a bool would wait for a GPU
        return Act(self.box.actions(torch.where(early, uniform, units)), extras), core

    @torch.no_grad()
    def divergence(self, net: BoxPolicy, batch: Batch) -> Tensor:
        """How far the likeliest action has moved, mean over its components, in units of half their box."""
        with without_autocast(net.device):  # nor is there any when it acts
            best = self.best(net(net.encode(slice_steps(batch.inputs, slice(-1)))))
        moved = best - batch.extras["best"].flatten(0, 1)
        return moved.abs().mean(-1).view(batch.mask.shape)

    @abstractmethod
    def best(self, outputs: Tensor) -> Tensor:
        """The likeliest action, in units of its box: [B, d] in [-1, 1] of outputs [B, outputs d]."""

    @abstractmethod
    def explore(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """An exploratory action, likewise."""
