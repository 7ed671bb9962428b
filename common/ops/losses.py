"""The three terms of an actor-critic loss, over valid transitions only.

Each takes a per-transition tensor with gradient and reduces it: "sum" adds up over time and batch (IMPALA, TorchBeast:
the effective step grows with the batch), "mean" divides by the number of valid transitions.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Reduction = Literal["sum", "mean"]


def masked_reduce(entries: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Sum or mean of [T, B] `entries` where [T, B] bool `mask` is true: a scalar, 0 where nothing is valid."""
    assert entries.shape == mask.shape, "want entries and mask of one shape"
    total = entries.masked_fill(~mask, 0.0).sum()
    return total if reduction == "sum" else total / mask.sum().clamp(min=1)


def policy_gradient_loss(*, log_probs: Tensor, advantages: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """-log pi(a_t|s_t) * advantage_t, with no gradient into the advantages.

    Args:
      log_probs: [T, B] of the actions taken, with gradient.
      advantages: [T, B], used as constants.
      mask: [T, B] bool, True where transition t is valid.
      reduction: over valid transitions.
    """
    return masked_reduce(-log_probs * advantages.detach(), mask, reduction)


def baseline_loss(*, values: Tensor, targets: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """(V(s_t) - target_t)^2 / 2, with no gradient into the targets. Shapes as in `policy_gradient_loss`."""
    return masked_reduce(0.5 * (values - targets.detach()).square(), mask, reduction)


def entropy_loss(*, entropies: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Minus the entropy of pi(.|s_t), so that adding it to a loss explores. Shapes as in `policy_gradient_loss`."""
    return masked_reduce(-entropies, mask, reduction)
