"""R2D2: Q-learning of a recurrent network from replayed sequences, which begin with a stored recurrent state."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor

from zerobeast.rl.algos.r2d2.config import R2D2Config
from zerobeast.rl.algos.r2d2.loss import first_priorities, loss
from zerobeast.rl.algos.value.q_acting import QActing
from zerobeast.rl.algos.value.q_learning import ValueLearning
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.algos.value.q_values import Scalars
from zerobeast.rl.learning import Updated
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.replay.items import BurnIn, Sequences


class R2D2(QActing[R2D2Config]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    clip_reward = False

    @property
    def values(self) -> Scalars:
        """One number per action; errors are squared."""
        return Scalars(math.inf)

    def learning(self, net: QNetwork) -> R2D2Learning:
        """Learn from sequences of the replay."""
        return R2D2Learning(self, net)


class R2D2Learning(ValueLearning[Sequences]):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings.
      net: the policy to train.
    """

    def __init__(self, algorithm: R2D2, net: QNetwork) -> None:
        self._config = settings = algorithm.settings
        items = partial(BurnIn, burn_in=settings.burn_in, length=settings.sequence_length)
        super().__init__(algorithm, net, items, partial(first_priorities, settings))

    def update(self, batch: Sequences, weights: Tensor, agent_steps: int) -> Updated:
        """Take one optimiser step on the drawn items."""
        with self._descent.autocast():
            total, priorities, metrics = loss(self._config, self._net, self._target.copy, batch, weights)
        learned = tree_map(lambda entry: entry[:-1][batch.mask].unsqueeze(0), batch.inputs.obs)
        step = self.descend(total, learned, agent_steps)
        return Updated(step, metrics, priorities, transitions=int(batch.mask.sum()))
