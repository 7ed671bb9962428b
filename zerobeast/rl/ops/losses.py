"""The terms of actor-critic losses, over valid transitions only.

Each takes a per-transition tensor with gradient and reduces it: "sum" adds up over time and batch (IMPALA, TorchBeast:
the effective step grows with the batch), "mean" divides by the number of valid transitions. With several ranks, the
whole batch's term is the mean of theirs, weighed equally for a sum, and by valid transitions for a mean.
"""

from typing import Literal

import torch
from torch import Tensor

from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.vtrace import MAX_LOG_RHO

Reduction = Literal["sum", "mean"]
MIN_DEVIATION = 1e-8


def masked_reduce(entries: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Sum or mean of [T, B] `entries` where [T, B] bool `mask` is true: a scalar, 0 if nothing is valid."""
    assert entries.shape == mask.shape, "expected entries and mask of one shape"
    total = entries.masked_fill(~mask, 0.0).sum()
    return ranks.size() * total if reduction == "sum" else total / mask.sum().clamp(min=1)


def valid_share(part: Tensor, mask: Tensor, reduction: Reduction) -> Tensor | float:
    """Factor for a mean over `part` [T, B] of the valid transitions: ranks' losses are weighed by all in `mask`.

    Their mean is then that over the parts of all ranks. 1 for a sum, and without ranks.
    """
    if ranks.size() == 1 or reduction == "sum" or part is mask:
        return 1.0
    own = torch.stack([part.sum(), mask.sum()]).float()
    whole = ranks.sum_over_ranks(own, "transitions with a choice")
    return own[0] / own[1].clamp(min=1) * whole[1] / whole[0].clamp(min=1)


def policy_gradient_loss(*, log_probs: Tensor, advantages: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """-log pi(a_t|s_t) * advantage_t, with no gradient into the advantages.

    Args:
      log_probs: [T, B] of the actions taken, with gradient.
      advantages: [T, B], used as constants.
      mask: [T, B] bool, True where transition t is valid.
      reduction: over valid transitions.
    """
    return masked_reduce(-log_probs * advantages.detach(), mask, reduction)


def clipped_surrogate_loss(
    *, log_ratios: Tensor, advantages: Tensor, clip: float, mask: Tensor, reduction: Reduction
) -> Tensor:
    """-min(r A, clip(r, 1 - eps, 1 + eps) A) with r = pi/mu (Schulman et al. 2017, equation 7).

    Args:
      log_ratios: [T, B] log r of the actions taken, with gradient.
      advantages: [T, B], used as constants.
      clip: eps.
      mask: [T, B] bool, True where transition t is valid.
      reduction: over valid transitions.
    """
    ratios = log_ratios.clamp(-MAX_LOG_RHO, MAX_LOG_RHO).exp()
    gains = advantages.detach()
    worse = torch.minimum(ratios * gains, ratios.clamp(1 - clip, 1 + clip) * gains)
    return masked_reduce(-worse, mask, reduction)


def baseline_loss(*, values: Tensor, targets: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """(V(s_t) - target_t)^2 / 2, with no gradient into the targets. Shapes as in `policy_gradient_loss`."""
    return masked_reduce(0.5 * (values - targets.detach()).square(), mask, reduction)


def clipped_baseline_loss(
    *, values: Tensor, before: Tensor, targets: Tensor, clip: float, mask: Tensor, reduction: Reduction
) -> Tensor:
    """The larger of the losses of V and of V clipped to within `clip` of `before`, [T, B], its value before the batch.

    From OpenAI Baselines (Huang et al. 2022, detail 9). Other shapes as in `policy_gradient_loss`.
    """
    kept = before + (values - before).clamp(-clip, clip)
    targets = targets.detach()
    worse = torch.maximum((values - targets).square(), (kept - targets).square())
    return masked_reduce(0.5 * worse, mask, reduction)


def entropy_loss(*, entropies: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Minus the entropy of pi(.|s_t), so that minimising it explores. Shapes as in `policy_gradient_loss`."""
    return masked_reduce(-entropies, mask, reduction)


def standardize(entries: Tensor, mask: Tensor) -> Tensor:
    """[T, B] `entries` of mean 0 and deviation 1 over the valid transitions of all ranks."""
    mean = masked_reduce(entries, mask, "mean")
    variance = masked_reduce((entries - mean).square(), mask, "mean")
    _, mean, variance = ranks.merge_moments(mask.sum(), mean, variance, "advantages")
    return (entries - mean) / (variance.sqrt() + MIN_DEVIATION)
