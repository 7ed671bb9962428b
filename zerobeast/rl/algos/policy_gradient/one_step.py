"""The simplest way to learn: one step of the optimiser per batch."""

from collections.abc import Callable

from torch import Tensor

from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, OneBatch
from zerobeast.rl.ops.losses import Reduction
from zerobeast.rl.protocol import Learned, Metrics

LossFunction = Callable[[PolicyAndValue, Batch], tuple[Tensor, Metrics]]


class OneStep(OneBatch):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      net: the policy to train.
      descent: the optimiser of its parameters.
      loss: returns the scalar to minimise, and detached scalars to plot.
      reduction: of the loss over valid transitions.
    """

    def __init__(
        self, net: PolicyAndValue, descent: GradientDescent, loss: LossFunction, reduction: Reduction = "mean"
    ) -> None:
        self._net, self._descent, self._loss, self._mean = net, descent, loss, reduction == "mean"
        self.parts = {"optimizer": descent}

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch."""
        with self._descent.autocast():
            loss, metrics = self._loss(self._net, batch)
        step = self._descent.step(loss, agent_steps, batch.mask if self._mean else None)
        # not earlier: the loss compares with the policy that acted; the last step is the first of the next rollout
        self._net.observe(slice_steps(batch.obs, slice(-1)), batch.away)
        applied = int(step.applied)
        return Learned(applied, 1 - applied, step.applied, step.loss, step.grad_norm, step.learning_rate, metrics)
