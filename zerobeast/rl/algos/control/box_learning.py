"""Learning Q(s, a) of continuous actions from a replay, and a policy from Q: what DDPG, TD3 and SAC share.

They act uniformly at first, then by a policy.

    y = R + gamma^m V'(s')                      R: the m-step return, V': `next_values`, by targets that follow slowly
    minimise sum_i mean 1/2 (Q_i(s, a) - y)^2   one step of the critics' optimiser, which trains the encoder too
    improve the policy by Q                     `improve`

Actions are in units of their box throughout. The policy is the one that acts; everything else is for learning only.
"""

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from functools import partial
from typing import ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.control.networks import BoxPolicy, Critics
from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.learning import GradientDescent, ReplayLearning, Target, UpdateResult, shape_rewards
from zerobeast.rl.nets import StepInput, seed_weights, without_autocast
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.gaussian import Box
from zerobeast.rl.protocol import Act, Learned, Metrics, Sampling
from zerobeast.rl.replay.items import NStep, Transitions
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


class BoxLearning(ReplayLearning[Transitions]):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the box.
      net: the policy that acts and is trained.
      n_critics: number of Q estimates.
    """

    optional = ("unmerged",)

    def __init__(self, algorithm: BoxControl[Settings], net: BoxPolicy, n_critics: int) -> None:
        run, settings = algorithm.config, algorithm.settings
        shape = partial(shape_rewards, settings=settings)
        items = partial(NStep, n=settings.n_step, discount=settings.discount, shape=shape)
        super().__init__(run, algorithm.env, algorithm.policy, items, net.device)
        self._net, self._box = net, algorithm.box
        width = net.vectors.out_size + algorithm.action_size
        critics = Critics(n_critics, [width, *run.net.widths(settings.dense_width)], run.net.activation).to(net.device)
        self._critics = Target(source=critics, copy=deepcopy(critics), tau=settings.target_rate)
        self._critic_descent = GradientDescent(run, settings, [*critics.parameters(), *net.vectors.parameters()])
        self.parts |= {"critics": critics, "critics_target": self._critics, "critics_optimizer": self._critic_descent}
        norm = net.vectors.norm
        #: statistics of this rank's observations since the last step; None: they are added at once, because it is alone
        self._unmerged = norm.apart() if norm is not None and ranks.size() > 1 else None
        self.parts["unmerged"] = self._unmerged

    @abstractmethod
    def next_values(self, features: Tensor) -> Tensor:
        """V' [N] of the features m steps later, [N, size]; called without gradient."""

    @abstractmethod
    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """Improve the policy at `features` [N, size], which are constants, and have the targets follow.

        Returns:
          False if its loss or gradient was not finite, so that it did not change; and metrics of the same names.
        """

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Store rollouts, and add their observations once to the statistics that normalise them, if any do."""
        super().add(rollouts, agent_steps)
        if (norm := self._unmerged or self._net.vectors.norm) is not None:
            norm.observe(slice_steps(rollouts.batch.obs, slice(-1)), rollouts.batch.away)

    def step(self, agent_steps: int) -> Learned:
        """As usual, with the observations of all ranks in the statistics: not all add as often as they take steps."""
        if self._unmerged is not None and self._net.vectors.norm is not None:
            self._net.vectors.norm.join(self._unmerged)
        return super().step(agent_steps)

    def update(self, batch: Transitions, weights: Tensor, agent_steps: int) -> UpdateResult:
        """One step of the critics and the encoder, then one of the policy."""
        with self._critic_descent.autocast():
            features = self._net.encode(batch.inputs)
            with torch.no_grad():
                later = self._net.encode(batch.next_inputs)
                targets = torch.addcmul(batch.reward, batch.discount, self.next_values(later))
            values = self._critics.source(features, self._box.units(batch.action))
            errors = values - targets
            loss = 0.5 * (weights * errors.square()).mean(-1).sum()
        step = self._critic_descent.step(loss, agent_steps)
        metrics = {"critic_loss": loss.detach(), "q_mean": values.detach().mean()}
        if step.applied:
            applied, improved = self.improve(features.detach(), agent_steps)
            step, metrics = step._replace(applied=applied), metrics | improved
        return UpdateResult(step, metrics, errors.detach().abs().mean(0), transitions=len(weights))
