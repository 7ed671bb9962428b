"""R2D2: Q-learning of a recurrent network from replayed sequences, which begin with the memory that was stored."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor

from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.q_acting import QActing
from zerobeast.common.algos.q_network import QNetwork
from zerobeast.common.algos.q_values import Scalars
from zerobeast.common.algos.r2d2.config import R2D2Config
from zerobeast.common.algos.r2d2.loss import first_priorities, loss
from zerobeast.common.algos.replay_learning import ReplayLearning, Updated
from zerobeast.common.algos.target import Target
from zerobeast.common.ops.tree import tree_map
from zerobeast.common.replay.items import BurnIn
from zerobeast.common.replay.replay import Replay
from zerobeast.common.replay.samples import Sequences
from zerobeast.common.wire.records import rollout_record


class R2D2(QActing[R2D2Config]):
    """See `zerobeast.common.algos.protocol.Algorithm`."""

    clip_reward = False

    @property
    def values(self) -> Scalars:
        """Numbers, whose errors are squared."""
        return Scalars(math.inf)

    def learning(self, net: QNetwork) -> R2D2Learning:
        """Steps on sequences of the replay."""
        return R2D2Learning(self, net)


class R2D2Learning(ReplayLearning[Sequences]):
    """See `zerobeast.common.algos.protocol.Learning`.

    Args:
      algorithm: whose settings these are.
      net: the policy, which is what is trained.
    """

    def __init__(self, algorithm: R2D2, net: QNetwork) -> None:
        config, settings = algorithm.config, algorithm.settings
        replay = Replay(
            config.store,
            rollout_record(algorithm.env, algorithm.policy, config.learner.unroll_length),
            algorithm.env,
            BurnIn(settings.burn_in, settings.sequence_length),
            settings,
            seed=config.seed,
            device=net.device,
            first_priorities=partial(first_priorities, settings) if algorithm.policy.extras else None,
        )
        super().__init__(config, settings, replay, per_sample=settings.sequence_length)
        self._config, self._net = settings, net
        self._descent = GradientDescent(config, settings, net.parameters())
        copy = deepcopy(net).requires_grad_(requires_grad=False)
        self._target = Target(source=net, copy=copy, period=settings.target_period, tau=settings.target_rate)

    def update(self, batch: Sequences, weights: Tensor, agent_steps: int) -> Updated:
        """One step on what was drawn; observations count for their statistics as often as they are learned from."""
        with self._descent.autocast():
            total, priorities, metrics = loss(self._config, self._net, self._target.copy, batch, weights)
        step = self._descent.step(total, agent_steps)
        if step.applied:
            self._net.observe(tree_map(lambda entry: entry[:-1][batch.mask].unsqueeze(0), batch.inputs.obs))
            self._target.count()
        return Updated(step, metrics, priorities)

    def state(self) -> dict[str, Any]:
        """What training has to remember."""
        target = self._target.state(other=self._target.copy)
        return super().state() | {"optimizer": self._descent.state(), "target": target}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._descent.load(state["optimizer"])
        self._target.load(state["target"], other=self._target.copy)
