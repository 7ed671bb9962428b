"""Learning Q(s, a) of continuous actions from a replay, and a policy from Q: what DDPG, TD3 and SAC share.

    y = R + gamma^m V'(s')                      R: the m-step return, V': `next_values`, by targets that follow slowly
    minimise sum_i mean 1/2 (Q_i(s, a) - y)^2   one step of the critics' optimiser, which trains the encoder too
    improve the policy by Q                     `improve`

Actions are in units of their box throughout. The policy is the one that acts; everything else is for learning only.
"""

from abc import abstractmethod
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

from zerobeast.rl.algos.control.box_control import BoxControl, Settings
from zerobeast.rl.algos.control.networks import HIDDEN_SIZE, BoxPolicy, Critics
from zerobeast.rl.algos.policy_gradient.actor_critic import steps
from zerobeast.rl.data import Rollouts
from zerobeast.rl.learning import GradientDescent, ReplayLearning, Target, Updated, shaped
from zerobeast.rl.protocol import Metrics
from zerobeast.rl.replay.items import NStep, Transitions


class BoxLearning(ReplayLearning[Transitions]):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the box.
      net: the policy that acts and is trained.
      n_critics: number of Q estimates.
    """

    def __init__(self, algorithm: BoxControl[Settings], net: BoxPolicy, n_critics: int) -> None:
        run, settings = algorithm.config, algorithm.settings
        shape = partial(shaped, settings=settings)
        items = partial(NStep, n=settings.n_step, discount=settings.discount, shape=shape)
        super().__init__(run, algorithm.env, algorithm.policy, items, net.device)
        self._net, self._box = net, algorithm.box
        width = net.vectors.out_size + algorithm.action_size
        critics = Critics(n_critics, [width, *run.net.widths(HIDDEN_SIZE)], run.net.activation).to(net.device)
        self._critics = Target(source=critics, copy=deepcopy(critics), tau=settings.target_rate)
        self._critic_descent = GradientDescent(run, settings, [*critics.parameters(), *net.vectors.parameters()])
        self.parts |= {"critics": critics, "critics_target": self._critics, "critics_optimizer": self._critic_descent}

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
        if self._net.vectors.norm is not None:
            self._net.observe(steps(rollouts.batch.obs, slice(-1)))

    def update(self, batch: Transitions, weights: Tensor, agent_steps: int) -> Updated:
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
        return Updated(step, metrics, errors.detach().abs().mean(0), transitions=len(weights))
