"""Actions of a squashed normal distribution with their exact log-density (Haarnoja et al. 2018b, appendix C).

A fresh draw's value before the tanh is still known, so no tanh has to be inverted and no mean kept off the bounds, as
`zerobeast.rl.ops.gaussian.SquashedGaussian` must do for actions that come with a rollout.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.ops.gaussian import Range, SquashedGaussian, log_slope

LOG_STD = (-20.0, 2.0)  #: log standard deviations are clipped to this, as in the authors' code


class TanhNormal(SquashedGaussian):
    """The distribution of the actions, with bounds of its own; log-densities of actions near theirs are cut off."""

    MEAN = Range(-math.inf, math.inf, room=1.0)
    LOG_STD = Range(*LOG_STD, room=1e-9)


class DrawnActions(NamedTuple):
    """Actions, and their log-density under the policy."""

    units: Tensor  #: [N, d] in [-1, 1]
    log_prob: Tensor  #: [N], of actions in these units


def draw(outputs: Tensor, noise: Tensor) -> DrawnActions:
    """Actions of a policy; gradients flow through them into its outputs.

    Args:
      outputs: [N, 2 d], means, then log standard deviations, before the tanh.
      noise: [N, d], standard normal.
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD)
    before = torch.addcmul(mean, log_std.exp(), noise)
    # before the tanh, the density is the noise's density divided by the deviation, whatever the mean
    minus = 0.5 * noise.square() + log_std + log_slope(before)
    return DrawnActions(torch.tanh(before), -minus.sum(-1) - 0.5 * math.log(2 * math.pi) * mean.shape[-1])
