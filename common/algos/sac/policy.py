"""Actions of a squashed normal distribution with their exact log-density (Haarnoja et al. 2018b, appendix C).

What is drawn is still known before the tanh, so nothing has to be inverted and no mean has to be kept off the bounds,
as `zerobeast.common.ops.gaussian.SquashedGaussian` must for actions that come with a rollout.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.common.ops.gaussian import log_slope

LOG_STD = (-20.0, 2.0)  #: where log standard deviations are cut off: the authors' code


class DrawnActions(NamedTuple):
    """Actions, and how dense the policy is there."""

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
    # the normal density is that of the noise, whatever mean and deviation are, but for the unit
    minus = 0.5 * noise.square() + log_std + log_slope(before)
    return DrawnActions(torch.tanh(before), -minus.sum(-1) - 0.5 * math.log(2 * math.pi) * mean.shape[-1])
