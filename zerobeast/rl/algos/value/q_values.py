"""A network's estimate of an action's return, and its distance from a target: one number, or a distribution.

    values.expected(answers)                                        # [..., A], what actions are chosen by
    values.compare(chosen, bootstrap, reward, discount)             # [N] losses and priorities

Everything else about learning values is the same for both, see `zerobeast.rl.algos.value.q_learning`.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from zerobeast.rl.ops.returns import atoms, project


class Comparison(NamedTuple):
    """How far each answer is from its target."""

    loss: Tensor  #: [N], with gradient
    priority: Tensor  #: [N] >= 0, without gradient: how much there is to learn


class Scalars:
    """How to interpret the answers of a `QNetwork` that gives one number per action.

    Args:
      huber: the error above which the loss is linear, so that gradients are at most this (Mnih et al. 2015).
    """

    atoms: int | None = None  #: as passed to `QNetwork`

    def __init__(self, huber: float) -> None:
        self._huber = huber

    def expectation(self, answers: Tensor) -> Tensor:
        """The expected return of each action: answers [..., A] -> [..., A], as they are."""
        return answers

    def compare(self, chosen: Tensor, bootstrap: Tensor, reward: Tensor, discount: Tensor) -> Comparison:
        """Compare answers with the target reward + discount Z, Z being the answer some steps later.

        Huber loss of the TD error, whose absolute value is the priority.

        Args:
          chosen: [N] or, of distributions, [N, K], answers for the actions that were taken, with gradient.
          bootstrap: Z, likewise, without gradient.
          reward: [N], the discounted sum over the steps in between.
          discount: [N], 0 if the episode terminated.
        """
        targets = reward + discount * bootstrap
        loss = functional.huber_loss(chosen, targets, reduction="none", delta=self._huber)
        return Comparison(loss, (targets - chosen.detach()).abs())


class Distributions:
    """As `Scalars`, for logits of a distribution over K returns per action (Bellemare et al. 2017).

    Args:
      n_atoms: K.
      v_min: the lowest return.
      v_max: the highest.
    """

    def __init__(self, n_atoms: int, v_min: float, v_max: float) -> None:
        self.atoms: int | None = n_atoms
        self._ends = v_min, v_max

    def expectation(self, answers: Tensor) -> Tensor:
        """The means of the distributions: [..., A, K] -> [..., A]."""
        return answers.softmax(-1) @ atoms(answers, *self._ends)

    def compare(self, chosen: Tensor, bootstrap: Tensor, reward: Tensor, discount: Tensor) -> Comparison:
        """KL(target || answer), which is the cross-entropy minus the target's entropy."""
        targets = project(bootstrap.softmax(-1), reward, discount, *self._ends)
        divergence = (torch.xlogy(targets, targets) - targets * chosen.log_softmax(-1)).sum(-1)
        return Comparison(divergence, divergence.detach().clamp(min=0.0))


Values = Scalars | Distributions
